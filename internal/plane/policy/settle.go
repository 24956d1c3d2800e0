package policy

import (
	"net/textproto"
	"regexp"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Settle says what a request really cost, which its response tells. Exactly one of Header, Bytes, Path and
// Statuses is set.
type Settle struct {
	Header string   // the name of a response header that has the cost, in its canonical form
	Bytes  bool     // the cost is the length of the response's body
	Path   []string // where the cost is in the JSON of the body
	// Statuses cost Cost, and all others Else.
	Statuses   []int
	Cost, Else int64

	Text string // as it was read
}

// WantSettle says what the text of a Settle must be.
const WantSettle = "header <name>, bytes, json <path> as in usage.total_tokens, or statuses as in status 401 403 = 1, else 0"

// settledStatuses is the text of statuses, with one space between words. A cost has at most 15 digits, as the table has it.
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
		ok = headerName(words[1])
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
				s.Statuses = append(s.Statuses, int(number(word)))
			}
			s.Cost = number(parts[2])
			s.Else = number(parts[3])
		}
	}
	if !ok {
		return nil, &ratelimit.FieldError{Field: "settle", Value: text, Want: WantSettle}
	}
	return s, nil
}

// number is the number that digits write.
func number(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64) // few enough digits
	return n
}
