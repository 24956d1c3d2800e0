package reading

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// Text is a parsed text with placeholders. It is immutable after Key.AddAPIKey.
type Text struct {
	pieces []piece
	Parts
}

// Parts lists the placeholders of a Text, and the parts of a request for which they stand.
type Parts struct {
	Fixed            bool     // the text has no placeholder
	Placeholders     []string // the names, in one spelling
	Secret           bool     // a placeholder stands for a credential
	User, Host, Path bool
	Headers          []string // the canonical names of request headers
	Header           string   // set if the text is the placeholder of this header alone
	Connection       bool     // the text is the address of the connection alone
}

// Merge adds the parts of a request for which other placeholders stand.
func (p *Parts) Merge(other Parts) {
	p.Secret = p.Secret || other.Secret
	p.User = p.User || other.User
	p.Host = p.Host || other.Host
	p.Path = p.Path || other.Path
}

// piece is fixed text or a placeholder in a Text.
type piece struct {
	name    string // the name of the placeholder, "other", or "" for fixed text
	text    string // fixed text, or the placeholder's parameter
	n       int    // the parameter as a number
	other   Custom
	address bool // the value may be a client's address
	isKey   bool // the policy's API key may be in the same place
}

// Custom is a placeholder that only one proxy has.
type Custom interface {
	// Value returns the value for a request. A placeholder without a value is "".
	Value(q *Input) string
}

// placeholder describes the source and the secrecy of a placeholder's value.
type placeholder struct {
	fromHost, fromPath bool // derived from the host or the path
	secret             bool // may be a credential, for every parameter
	address            bool
}

// placeholders has the placeholders of both proxies. Names that take a parameter end with a dot.
var placeholders = map[string]placeholder{
	"client_ip": {address: true},
	"remote_ip": {address: true},
	"host":      {fromHost: true},
	"hostport":  {fromHost: true},
	"labels.":   {fromHost: true},
	"port":      {},
	"scheme":    {},
	"method":    {},
	"uri":       {fromPath: true, secret: true},
	"path":      {fromPath: true},
	"path.":     {fromPath: true, address: true},
	"dir":       {fromPath: true},
	"file":      {fromPath: true, address: true},
	"query":     {secret: true, address: true},
	"query.":    {address: true},
	"header.":   {address: true},
	"cookie.":   {secret: true, address: true},
}

// AddText appends fixed text.
func (t *Text) AddText(text string) {
	if text != "" {
		t.pieces = append(t.pieces, piece{text: text})
	}
	t.summarize()
}

// Add appends a placeholder of both proxies, such as header.X-User. It reports whether there is one.
func (t *Text) Add(name string) bool {
	parameter := ""
	if dot := strings.IndexByte(name, '.'); dot >= 0 {
		parameter = name[dot+1:]
		name = name[:dot+1]
	}
	if name == "header." && strings.EqualFold(parameter, "Host") {
		name = "host" // Go has it in Request.Host, not in the headers
		parameter = ""
	}
	base, ok := placeholders[name]
	if !ok || strings.HasSuffix(name, ".") && parameter == "" ||
		name == "header." && !option.HeaderName(parameter) {
		return false
	}
	p := piece{name: name, text: parameter, address: base.address}
	secret := base.secret
	switch name {
	case "header.":
		p.text = http.CanonicalHeaderKey(parameter)
		secret = option.CredentialHeader(p.text)
		t.Headers = append(t.Headers, p.text)
	case "query.":
		secret = option.CredentialName(parameter)
	case "labels.", "path.":
		n, err := strconv.Atoi(parameter)
		if err != nil || n < 0 {
			return false
		}
		p.n = n
		p.text = strconv.Itoa(n)
	}
	t.Merge(Parts{Secret: secret, Host: base.fromHost, Path: base.fromPath})
	t.Placeholders = append(t.Placeholders, p.name+p.text)
	t.pieces = append(t.pieces, p)
	t.summarize()
	return true
}

// AddCustom appends a placeholder of one proxy. parts says what it may contain.
func (t *Text) AddCustom(name string, value Custom, parts Parts) {
	t.Merge(parts)
	t.Placeholders = append(t.Placeholders, name)
	t.pieces = append(t.pieces, piece{name: "other", text: name, other: value, address: true})
	t.summarize()
}

// summarize sets the parts that depend on all pieces.
func (t *Text) summarize() {
	t.Fixed = len(t.Placeholders) == 0
	alone := len(t.pieces) == 1
	t.Connection = alone && t.pieces[0].name == "remote_ip"
	t.Header = ""
	if alone && len(t.Headers) == 1 {
		t.Header = t.Headers[0]
	}
}

// shareKeys marks the placeholders that the text of the policy's API key has, too, and reports whether there
// are any.
func (t *Text) shareKeys(key *Text) bool {
	shared := false
	for i := range t.pieces {
		p := &t.pieces[i]
		for _, other := range key.pieces {
			if p.name != "" && p.name == other.name && p.text == other.text {
				p.isKey = true
				shared = true
			}
		}
	}
	return shared
}

// emptyText is the list with which texts begin.
var emptyText = []string{""}

// allBits keeps addresses as they are, except for their form.
const allBits = 0

// textValues returns the different texts for a request, one for each combination of the values of its
// placeholders. It returns nil if there are more than policy.MaxValues, except for one placeholder alone. It
// keeps v4 or v6 bits of addresses, unless v4 is allBits. q may be nil for a fixed text.
func textValues(t *Text, q *Input, v4, v6 int) []string {
	most := policy.MaxValues
	if len(t.pieces) == 1 {
		most = 1 << 30 // the client sends each value
	}
	list := emptyText
	for i := range t.pieces {
		p := &t.pieces[i]
		if p.name == "" {
			list = policy.Product(list, []string{p.text}, most)
			continue
		}
		values := pieceValues(p, q)
		if p.address && v4 != allBits {
			networks := make([]string, len(values))
			for j := range values {
				networks[j] = Network(values[j], v4, v6)
			}
			values = policy.Distinct(networks)
		}
		if list = policy.Product(list, values, most); list == nil {
			return nil
		}
	}
	return list
}

// Values returns the different texts for a request: see textValues. q may be nil for a fixed text.
func (t *Text) Values(q *Input) []string { return textValues(t, q, allBits, allBits) }

// One returns the text for a request. several reports that there are several.
func (t *Text) One(q *Input) (text string, several bool) {
	values := t.Values(q)
	if len(values) != 1 {
		return "", true
	}
	return values[0], false
}
