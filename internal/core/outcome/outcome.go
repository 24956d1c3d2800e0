// Package outcome has the words for what a proxy does with a request. docs/operating.md explains them.
package outcome

// Kind is the outcome of a request, or of one limit for it.
type Kind uint8

// The outcomes.
const (
	Admitted   Kind = iota // each limit had room, or none applied
	Limited                // a limit had no room
	Blocked                // a ban or a block rule matched
	Rejected               // the API key, the path, the body or the key of a limit was not valid
	Overloaded             // the database decided others in time, but not this request
	Failed                 // there was no decision for another reason
)

// Words has the word of each Kind.
var Words = []string{"admitted", "limited", "blocked", "rejected", "overloaded", "failed"}

// String returns the word.
func (k Kind) String() string { return Words[k] }
