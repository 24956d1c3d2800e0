package policy

import (
	"net/textproto"
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

// mostSettleDigits is how many digits a cost of a status has at most, as the table has it.
const mostSettleDigits = 15

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
		ok = readStatuses(s, words[1:])
	}
	if !ok {
		return nil, &ratelimit.FieldError{Field: "settle", Value: text, Want: WantSettle}
	}
	return s, nil
}

// readStatuses reads what follows the word status, and reports whether it is right.
func readStatuses(s *Settle, words []string) bool {
	n := len(words)
	if n < 5 || words[n-4] != "=" || words[n-2] != "else" || !strings.HasSuffix(words[n-3], ",") {
		return false
	}
	for _, word := range words[:n-4] {
		status, err := strconv.Atoi(word)
		if err != nil || status < 100 || status > 599 || len(word) != 3 {
			return false
		}
		s.Statuses = append(s.Statuses, status)
	}
	var ok, others bool
	s.Cost, ok = settledCost(strings.TrimSuffix(words[n-3], ","))
	s.Else, others = settledCost(words[n-1])
	return ok && others
}

func settledCost(text string) (int64, bool) {
	cost, err := strconv.ParseUint(text, 10, 63)
	return int64(cost), err == nil && len(text) <= mostSettleDigits
}
