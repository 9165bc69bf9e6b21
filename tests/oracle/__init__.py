"""The oracle for "never a wrong token": a reply replayed alone and cold, and how far each of its tokens lies below the
best one there.

Floating point differs with the shape of batches, so a greedy reply that was computed beside others need not be the
text of a solo run.  But every token of it must have been nearly the best one: within `delta`, which is how far the
same tokens' logits move when nothing but the cuts changes.  A reply from a wrong state misses that by far.
"""
