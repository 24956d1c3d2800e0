package option

import (
	"net/textproto"
	"regexp"
	"strconv"
	"strings"
)

// CostSource describes where a response holds the cost of its request. Exactly one of Header, Bytes, Path,
// Statuses and Unit is set.
type CostSource struct {
	Header string   // the name of a response header that has the cost, in its canonical form
	Bytes  bool     // the cost is the length of the response's body
	Path   []string // the path of the cost in a JSON body
	// A response with one of Statuses costs Cost, and any other response costs Else.
	Statuses   []int
	Cost, Else int64

	Unit   Unit  // the limit counts the tokens that the response reports, or their cost; never Requests
	Output int64 // with Unit: the output that a request without a maximum is charged before its response

	BatchAPI bool // with Unit: batches pass, whose answers it cannot count

	Text string // the text that was parsed, or unit and the Unit
}

// CountsTokens reports whether s describes a limit of tokens or money. A nil CostSource does not.
func (s *CostSource) CountsTokens() bool { return s != nil && s.Unit != "" }

// UnitOf returns the unit of the limit that s describes.
func (s *CostSource) UnitOf() Unit {
	if s.CountsTokens() {
		return s.Unit
	}
	return Requests
}

// WantCostSource describes the valid texts of a CostSource.
const WantCostSource = "header <name>, bytes, json <path> as in usage.total_tokens, or statuses as in " +
	"status 401 403 = 1, else 0"

// headerToken matches the name of a header.
const headerToken = "[!#$%&'*+.^_`|~0-9A-Za-z-]+"

// costSourcePattern matches the text of a CostSource, with one space between words. As in the table of rules,
// a cost has at most 15 digits.
var costSourcePattern = regexp.MustCompile("^(?:(bytes)|header (" + headerToken + ")|" +
	`json ([^. ]+(?:\.[^. ]+)*)|status((?: [1-5][0-9]{2})+) = ([0-9]{1,15}), else ([0-9]{1,15}))$`)

// reserved matches the canonical names of headers without which a response has another meaning. The proxy
// takes the header of a CostSource from the response.
var reserved = regexp.MustCompile("^(?:Grpc-.*|Content-.*|Access-Control-.*|Sec-.*|Proxy-.*|Set-Cookie|" +
	"Trailer|Transfer-Encoding|Connection|Keep-Alive|Upgrade|Te|Date|Location|Vary|Etag|Last-Modified|" +
	"Cache-Control|Expires|Age|Pragma|Allow|Accept-Ranges|Www-Authenticate|Authorization|Retry-After|" +
	"Strict-Transport-Security|Link|Server|Via|Warning)$")

// ParseCostSource parses the setting settle. For "" it returns nil. The error is a *ratelimit.FieldError.
func ParseCostSource(text string) (*CostSource, error) {
	s := &CostSource{Text: strings.Join(strings.Fields(text), " ")}
	if s.Text == "" {
		return nil, nil
	}
	parts := costSourcePattern.FindStringSubmatch(s.Text)
	if parts == nil {
		return nil, Invalid("settle", text, WantCostSource)
	}
	s.Bytes = parts[1] != ""
	s.Header = textproto.CanonicalMIMEHeaderKey(parts[2])
	if reserved.MatchString(s.Header) {
		return nil, Invalid("settle", text, "header <name> with a header of its own, as in X-Cost: it is "+
			"taken from the response, and clients need "+s.Header)
	}
	if parts[3] != "" {
		s.Path = strings.Split(parts[3], ".")
	}
	for _, word := range strings.Fields(parts[4]) {
		status, _ := strconv.Atoi(word) // the pattern matches only numbers that fit
		s.Statuses = append(s.Statuses, status)
	}
	s.Cost, _ = strconv.ParseInt(parts[5], 10, 64)
	s.Else, _ = strconv.ParseInt(parts[6], 10, 64)
	return s, nil
}

var headerName = regexp.MustCompile("^" + headerToken + "$")

// HeaderName reports whether text is a valid header name.
func HeaderName(text string) bool { return headerName.MatchString(text) }
