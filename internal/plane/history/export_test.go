package history

// These functions give package history_test access to internals.
var (
	CleanPath = cleanPath
	MaskKey   = maskKey
)

// SetMaxPending sets how many rows a Writer keeps.
func SetMaxPending(w *Writer, rows int) { w.maxPending, w.parcelRows = rows, rows/2 }

// RunUpkeep runs the upkeep once, as a Writer does in the background.
func RunUpkeep(w *Writer) error { return w.runUpkeep() }
