package settings

import (
	"net/textproto"
	"regexp"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Settle says where a response holds the cost of its request. Exactly one of Header, Bytes, Path and Statuses
// is set.
type Settle struct {
	Header string   // the name of a response header that has the cost, in its canonical form
	Bytes  bool     // the cost is the length of the response's body
	Path   []string // where the cost is in the JSON of the body
	// Statuses cost Cost, and all others Else.
	Statuses   []int
	Cost, Else int64

	Text string // as it was read
}

// wantSettle says what the text of a Settle must be.
const wantSettle = "header <name>, bytes, json <path> as in usage.total_tokens, or statuses as in " +
	"status 401 403 = 1, else 0"

// settledStatuses matches the text of statuses, with one space between words. As in the table, a cost has at
// most 15 digits.
var settledStatuses = regexp.MustCompile(`^status((?: [1-5][0-9]{2})+) = ([0-9]{1,15}), else ([0-9]{1,15})$`)

// ParseSettle reads a Settle; "" is none, which is nil. The error is a *ratelimit.FieldError.
func ParseSettle(text string) (*Settle, error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return nil, nil
	}
	s := &Settle{Text: strings.Join(words, " ")}
	ok := false
	switch {
	case words[0] == "bytes":
		s.Bytes = true
		ok = len(words) == 1
	case words[0] == "header" && len(words) == 2:
		s.Header = textproto.CanonicalMIMEHeaderKey(words[1])
		ok = HeaderName(words[1])
	case words[0] == "json" && len(words) == 2:
		s.Path = strings.Split(words[1], ".")
		ok = true
		for _, name := range s.Path {
			ok = ok && name != ""
		}
	case words[0] == "status":
		parts := settledStatuses.FindStringSubmatch(s.Text)
		ok = len(parts) == 4
		if ok {
			for _, word := range strings.Fields(parts[1]) {
				status, _ := strconv.Atoi(word) // the pattern has numbers that fit
				s.Statuses = append(s.Statuses, status)
			}
			s.Cost, _ = strconv.ParseInt(parts[2], 10, 64)
			s.Else, _ = strconv.ParseInt(parts[3], 10, 64)
		}
	}
	if !ok {
		return nil, &ratelimit.FieldError{Field: "settle", Value: text, Want: wantSettle}
	}
	return s, nil
}

// readSettle reads ConfiguredLimit.Settle.
func readSettle(to *Settings, text string) (err error) {
	to.Limit.Settle, err = ParseSettle(text)
	return err
}

// checkSettle refuses a settlement of a slot.
func checkSettle(to *Settings, text string) error {
	if to.Limit.Settle != nil && to.Limit.Limit.Algorithm == ratelimit.InFlight {
		want := "left out with in_flight: a slot ends with its request"
		return &ratelimit.FieldError{Value: text, Want: want}
	}
	return nil
}

// HeaderName reports whether text is a token, as the names of headers are.
func HeaderName(text string) bool {
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return text != ""
}
