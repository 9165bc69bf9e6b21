"""OpenAI's Responses API (https://platform.openai.com/docs/api-reference/responses) over the chat path.

:mod:`.route` answers requests; :mod:`.inputs` and :mod:`.tools` make a chat body of one, :mod:`.stream` and
:mod:`.items` make events and items of the reply, all of them without I/O; :mod:`.store` remembers.
"""
