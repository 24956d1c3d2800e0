package history

// These functions give package history_test access to internals.
var (
	CleanPath = cleanPath
	MaskKey   = maskKey
)

// RunUpkeep runs the upkeep once, as a Writer does in the background.
func RunUpkeep(w *Writer) error { return w.runUpkeep() }
