"""What a GGUF file says about its model, from its header alone: nothing of it is executed, no tensor is read.

formats.py    types of values and tensors
header.py     the file's header: metadata and tensor infos, checked and bounded
parts.py      a whole model: the parts of a split one together
metadata.py   typed access to the metadata, as llama.cpp reads it
layers.py     what each layer is; windows.py: which have a sliding window; recurrent.py: the state of the others
weights.py    the tensors by class and quantisation
shape.py      all of this as one `ModelShape`, from which memory is planned
chat.py       what a chat template can do
tokenizer.py  the tokenizer and its special tokens
projector.py  what a projector file (mmproj) holds
report.py     everything for a reader, as data; text.py: for the terminal
"""
