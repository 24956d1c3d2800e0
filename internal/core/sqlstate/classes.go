package sqlstate

// The classes of errors without an SQLSTATE, and of SQLSTATEs that are not in Classes.
const (
	TimeoutClass    = "timeout"
	ConnectionClass = "connection"
	OtherClass      = "other"
)

// Classes lists the classes by which errors are counted: the first two characters of SQLSTATEs, and the
// classes above. The set is fixed, so that a server cannot add labels to metrics.
var Classes = []string{
	"08", "0A", "22", "23", "25", "26", "28", "3D", "40", "42", "53", "54", "55", "57", "58", "XX",
	TimeoutClass, ConnectionClass, OtherClass,
}
