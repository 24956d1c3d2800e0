package history

// These functions give package history_test access to internals.
var (
	CleanText = cleanText
	CleanPath = cleanPath
	MaskKey   = maskKey
)

// RunUpkeep runs the upkeep once, as a Writer does in the background.
func RunUpkeep(w *Writer) error { return w.runUpkeep() }

// Columns returns the arguments of the function that writes a table.
func Columns(function string) []string {
	for _, t := range []*table{audit, metrics} {
		if t.function == function {
			return append(append(append([]string(nil), t.shared...), t.numbers...), t.texts...)
		}
	}
	return nil
}
