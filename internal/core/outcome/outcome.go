// Package outcome has the words for what a proxy does with a request. Each is a column of rate_limit_metrics.
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
	Count                  // the number of outcomes
)

// Words has the word of each Kind.
var Words = []string{"admitted", "limited", "blocked", "rejected", "overloaded", "failed"}

// String returns the word.
func (k Kind) String() string { return Words[k] }

// Undecided reports whether a request had no decision. Such a request may pass.
func (k Kind) Undecided() bool { return k == Overloaded || k == Failed }
