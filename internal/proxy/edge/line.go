package edge

import "time"

// Line is a line of the log of a proxy. It has no key of a request and no DSN.
type Line struct {
	Level   Level
	Text    string
	Setting string // which Text is about, and begins with; "" is none
	Prefix  string // of the limit; "" is none
	Err     error
	Dropped int64 // how many such lines were not logged since the last one

	// Of a line after an outage: how long it was, and how many requests had no decision.
	Lasted    time.Duration
	Undecided int64
}

// Level is that of a Line.
type Level int32

// The values of Level.
const (
	Info Level = iota
	Warn
	Error
)
