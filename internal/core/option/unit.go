package option

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// Unit names what a limit counts.
type Unit string

// The values of Unit. The units other than Requests count tokens of language models, which the response
// reports: see package usage.
const (
	Requests     Unit = "requests"
	Tokens       Unit = "tokens"        // all tokens
	InputTokens  Unit = "input_tokens"  // the prompt, without the part that came from a cache
	OutputTokens Unit = "output_tokens" // the answer, with its reasoning
)

// defaultOutput is the default of the setting output.
const defaultOutput = 4096

// TokensOf returns the Settle of a limit with a unit, or nil for Requests. output is the setting output; 0
// means its default. It makes l reserve. The error names the setting that does not suit the unit.
func TokensOf(unit Unit, output int64, l *ratelimit.Limit) (*Settle, error) {
	suits := l.Algorithm == ratelimit.FixedWindow || l.Algorithm == ratelimit.SlidingWindow
	wrong := &ratelimit.FieldError{Field: "unit", Value: string(unit)}
	switch unit {
	case Requests, "":
		return nil, nil
	case Tokens, InputTokens, OutputTokens:
	default:
		wrong.Want = "requests, tokens, input_tokens or output_tokens"
		return nil, wrong
	}
	if !suits {
		wrong.Want = "requests with " + l.Algorithm.String() +
			": only fixed_window and sliding_window count tokens"
		return nil, wrong
	}
	if l.Lease > 0 {
		wrong.Want = "requests with a lease: a response may cost more than a lease has"
		return nil, wrong
	}
	if output == 0 {
		output = defaultOutput
	}
	l.Reserves = true
	return &Settle{Unit: unit, Output: output, Text: "unit " + string(unit)}, nil
}

// InputOf estimates the tokens of a request from the length of its body, which is negative if it is unknown.
func InputOf(length int64) int64 {
	if length <= 0 {
		return 0
	}
	return length/4 + (length%4+3)/4
}

// Charge returns what a request with a body of a length is charged before its response, from 1 to quota.
// output is the maximum that the request names, or 0.
func (s *Settle) Charge(length, output, quota int64) int64 {
	if output == 0 {
		output = s.Output
	}
	n := InputOf(length)
	switch s.Unit {
	case Tokens:
		n += output
	case OutputTokens:
		n = output
	}
	if n > quota {
		n = quota
	}
	if n < 1 {
		n = 1
	}
	return n
}
