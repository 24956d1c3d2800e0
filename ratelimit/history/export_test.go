package history

// What the tests of package history_test see.
var (
	CleanText = cleanText
	CleanPath = cleanPath
	MaskKey   = maskKey
)
