package history

// What the tests of package history_test see.
var (
	CleanText = cleanText
	CleanPath = cleanPath
	MaskKey   = maskKey
)

// KeepUp does the upkeep once, as a Writer does it in the background.
func KeepUp(w *Writer) error { return w.keepUp() }
