package option

import (
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Unit names what a limit counts.
type Unit string

// The values of Unit. The units other than Requests count tokens of language models, which the response
// reports (see package usage), or their cost.
const (
	Requests     Unit = "requests"
	Tokens       Unit = "tokens"        // all tokens
	InputTokens  Unit = "input_tokens"  // the prompt, from a cache or not, with its sound and pictures
	OutputTokens Unit = "output_tokens" // the answer, with its reasoning, sound and pictures
	Money        Unit = "money"         // what the tokens cost, in millionths of the currency of the prices
)

// defaultOutput is the default of the setting output.
const defaultOutput = 4096

// PassBatches is the value of the setting batches with which batches pass.
const PassBatches = "pass"

// TokensOf returns the CostSource of a limit with a unit, or nil for Requests. output is the setting output;
// 0 means its default. batches is the setting batches. The caller makes l reserve, with this Unit. The error
// names the setting that does not suit the unit.
func TokensOf(unit Unit, output int64, batches string, l *ratelimit.Limit) (*CostSource, error) {
	want := ""
	switch {
	case unit == Requests || unit == "":
		return nil, nil
	case unit != Tokens && unit != InputTokens && unit != OutputTokens && unit != Money:
		want = "requests, tokens, input_tokens, output_tokens or money"
	case l.Algorithm != ratelimit.FixedWindow && l.Algorithm != ratelimit.SlidingWindow:
		want = "requests with " + l.Algorithm.String() +
			": only fixed_window and sliding_window count " + string(unit)
	case l.Lease > 0:
		want = "requests with a lease: a response may cost more than a lease has"
	}
	if want != "" {
		return nil, Invalid("unit", string(unit), want)
	}
	if output == 0 {
		output = defaultOutput
	}
	return &CostSource{Unit: unit, Output: output, BatchAPI: batches == PassBatches,
		Text: "unit " + string(unit)}, nil
}

// WantNone says why a limit with s, which TokensOf has returned, has no other cost, for an error.
func (s *CostSource) WantNone() string {
	return "left out with " + s.Text + ": the response reports the cost"
}

// LowerASCII replaces ASCII letters by those in lower case.
var LowerASCII = strings.NewReplacer(letters()...)

// letters returns the pairs of LowerASCII.
func letters() []string {
	var pairs []string
	for c := 'A'; c <= 'Z'; c++ {
		pairs = append(pairs, string(c), string(c+'a'-'A'))
	}
	return pairs
}

// ModelName returns the name of a language model in the form that prices and the ledger have.
func ModelName(text string) string { return LowerASCII.Replace(strings.TrimSpace(text)) }

// InputOf estimates the tokens of a request from the length of its body, which is negative if it is unknown.
func InputOf(length int64) int64 {
	if length <= 0 {
		return 0
	}
	return length/4 + (length%4+3)/4
}

// Charge returns what a request with an estimated input and output is charged before its response, from 1 to
// quota. money is what they cost.
func (s *CostSource) Charge(input, output, money, quota int64) int64 {
	n := input
	switch s.Unit {
	case Tokens:
		n += output
	case OutputTokens:
		n = output
	case Money:
		n = money
	}
	if n > quota {
		n = quota
	}
	if n < 1 {
		n = 1
	}
	return n
}

// Amount returns what people read for a number of units: a decimal number of money.
func (u Unit) Amount(n int64) string {
	const scale = 1000000
	if u != Money {
		return strconv.FormatInt(n, 10)
	}
	sign := ""
	if n < 0 {
		sign = "-"
		n = -n
	}
	text := strconv.FormatInt(scale+n%scale, 10)[1:]
	return sign + strings.TrimSuffix(strconv.FormatInt(n/scale, 10)+"."+strings.TrimRight(text, "0"), ".")
}
