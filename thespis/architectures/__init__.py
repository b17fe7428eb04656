"""One file per architecture; each reads like its paper's figure."""
