package sqlstate

// Classes of errors that have no SQLSTATE, or one of an unusual class.
const (
	TimeoutClass    = "timeout"
	ConnectionClass = "connection"
	OtherClass      = "other"
)

// Classes are the classes by which errors are counted: the first two characters of SQLSTATEs, and those
// above. They are a fixed set, so that a server cannot add labels to metrics. Nothing changes them.
var Classes = []string{
	"08", "0A", "22", "23", "25", "26", "28", "3D", "40", "42", "53", "54", "55", "57", "58", "XX",
	TimeoutClass, ConnectionClass, OtherClass,
}
