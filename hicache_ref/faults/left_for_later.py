"""Public reports of defects in hierarchical and prefix caches that are no faults here, each with its reason.

Together with the origins of the catalogue they are all that are known to this project, so that none is forgotten.
"""

LEFT: dict[str, dict[str, str]] = {
    "sliding windows: would be a third component": {
        "SG-36350": "a window lock is released by what is there, not by what was taken",
    },
    "ranks: come with many models fed the same operations": {
        "SG-31946": "rank-local pools are written by rank 0 alone",
        "SG-26921": "a rank leaves before a collective",
        "SG-28429": "ranks agree on how many copies ended, not on which",
        "SG-33442": "a load is decided from local free space",
        "SG-30760": "ranks ask for the progress of a prefetch differently often",
        "SG-22607": "pipeline stages see copies end at different steps",
        "VL-50653": "scheduler and workers size the pool differently",
        "SG-37234": "ranks write different shards under one key",
        "SG-36205": "the check itself stalls the ranks: a rule for checkers, not for caches",
    },
    "layers, streams and bytes: come with the engine": {
        "SG-22811": "a side buffer is read without waiting for its layer",
        "TR-15546": "a page table is overwritten under its upload",
        "SG-17085": "an index is not part of the backup",
        "SG-37534": "host rows are narrower than device rows",
        "SG-22767": "a pool that borrows indices frees them too",
    },
    "the caller's duty: queues and schedulers are not modelled": {
        "SG-15439": "an exit of the bootstrap queue does not release",
        "SG-37103": "two ways to abort do not release",
        "SG-20049": "acknowledgements are polled on one path only",
        "LM-2942": "an allocation is retried for ever",
    },
    "the store's own books: `hicache-ref storage check` tries a store, the cache only sees what it answers": {
        "MC-849": "a reservation outlives its writer",
        "MC-3421": "pointers outlive the lock they were read under",
        "LM-4546": "removed entries stay on the budget of the disk",
        "SG-29280": "the declared size of a page is half of it",
        "BI-660": "a failed query answers twice for each key",
    },
    "the names of stored pages: no step of the cache makes one; `hicache-ref storage check` tries them (HC-STORE-37)": {
        "SG-33268": "storage keys lack the data type",
    },
    "another design: there is nothing here that it could break": {
        "JX-1411": "the mark of a running copy is set after its submission, which is one step here",
        "DY-11785": "an index beside the tree; here nodes are found through the tree alone",
        "DY-11169": "a position saved across operations; here a node is named by its key",
        "VL-34576": "lists of the ARC policy",
        "VL-57159": "one event stands for several blocks; here for one page",
        "VL-51614": "event blocks and cache blocks of different sizes; here both are pages",
        "VL-55092": "two pages with one content on a tier; a radix tree holds one",
        "DY-6872": "a consumer that expects single tokens in bigram mode",
        "DY-10916": "a consumer that prunes what is announced later",
    },
    "a lawful difference here, told apart by a rule": {
        "SG-36647": "chunked inserts count no hit: `chunked_counts_hit`",
    },
    "left out of the model, as `spec/upstream-map.md` says": {
        "SG-33862": "host copies of resident nodes are not reclaimed, and a small host pool starves",
    },
}
"""Reason -> public report -> what it is about."""
