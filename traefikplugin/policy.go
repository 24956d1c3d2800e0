package traefikplugin

import (
	"net/http"
	"net/netip"
	"path"
	"reflect"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// compiledPolicy is a Policy that was compiled.
type compiledPolicy struct {
	settings  edge.PolicySettings
	database  edge.StoreSettings
	addresses *addresses

	// key is the name of the header that holds the API key; "" if another text gives it.
	key                        string
	headers                    []string // all headers that hold it
	keyText, user, tier, route template
	fixedTier                  string // the tier, unless tier has placeholders
	varies                     bool   // tier or route has placeholders, or there is a route
	reject                     bool   // requests with keys that are not valid
	forward                    bool
}

// policy reads the policy of a configuration, or returns nil. limits is where the limits are counted.
func (c *Config) policy(a *addresses, limits edge.StoreSettings) (*compiledPolicy, error) {
	if c.Policy == nil {
		return nil, nil
	}
	if err := checkOne("policy", len(c.Policy)); err != nil {
		return nil, named("", err)
	}
	one := Policy{APIKey: ""} // all defaults, for policy: {}
	if len(c.Policy) > 0 {
		one = c.Policy[0]
	}
	t, err := one.read()
	if err != nil {
		return nil, named("policy.", err)
	}
	t.addresses = a
	if t.database, err = c.otherStore("policy.", one.DSN, one.DSNFile, limits); err != nil {
		return nil, err
	}
	if t.database.DSN == edge.MemoryDSN {
		return nil, edge.PolicyNeedsPostgres()
	}
	return t, nil
}

// read reads a policy. Errors have the names of package edge.
func (c *Policy) read() (*compiledPolicy, error) {
	t := &compiledPolicy{}
	var err error
	if t.keyText, err = parseSender("api_key", c.APIKey, "{header.X-Api-Key}"); err != nil {
		return nil, err
	}
	if len(t.keyText) == 1 && t.keyText[0].from == fromHeader {
		t.key = t.keyText[0].text
	}
	for _, p := range t.keyText {
		if p.from == fromHeader {
			t.headers = append(t.headers, p.text)
		}
	}
	if t.user, err = parseSender("user", c.User, "{header.X-Forwarded-User}"); err != nil {
		return nil, err
	}
	if t.tier, err = parseTemplate("tier", c.Tier); err != nil {
		return nil, err
	}
	if t.tier.fixed() {
		t.fixedTier = c.Tier
		if t.fixedTier == "" {
			t.fixedTier = edge.DefaultTier
		}
	}
	if t.route, err = parseTemplate("route", c.Route); err != nil {
		return nil, err
	}
	t.varies = t.fixedTier == "" || t.route != nil
	var read edge.Settings
	if err := edge.Read(edge.PolicyTable, reflect.ValueOf(c), &read); err != nil {
		return nil, err
	}
	t.reject = read.RejectUnknown
	t.settings = read.Policy
	t.forward, err = edge.ParseSwitch("forward_headers", c.ForwardHeaders, false)
	return t, err
}

// parseSender reads text that says which sender a request is of, and so must have a placeholder.
func parseSender(field, text, example string) (template, error) {
	t, err := parseTemplate(field, text)
	if err == nil && text != "" && t.fixed() {
		err = &ratelimit.FieldError{Field: field, Value: text, Want: "text with a placeholder, such as " + example + ": all requests would have the same"}
	}
	return t, err
}

// textOf is the text of a template for a request. Unlike that of a key of a limit, a value is
// not changed.
func textOf(t template, r *http.Request, a *addresses) string {
	text := ""
	for i := range t {
		text += value(&t[i], r, a)
	}
	return text
}

// checkBesidePolicy checks what a limit may have only with a policy, or only without. A key
// that contains the API key of the policy is a secret.
func (c *Config) checkBesidePolicy(z *Zone, r *zone) error {
	if c.Policy != nil {
		if z.HashKey == "" && len(c.Policy) > 0 && hasPieceOf(r.key, c.Policy[0].APIKey) {
			r.secret = true
			for i := range r.alternatives {
				r.alternatives[i].secret = r.alternatives[i].secret || hasPieceOf(r.alternatives[i].text, c.Policy[0].APIKey)
			}
		}
		return edge.CheckPolicyRows(r.limit)
	}
	if r.ban != nil {
		return edge.BanNeedsPolicy(z.Ban)
	}
	return nil
}

// hasPieceOf reports whether a template has a placeholder of text.
func hasPieceOf(t template, text string) bool {
	other, err := parseTemplate("api_key", text)
	if err != nil {
		return false // reading the policy gives this error
	}
	for _, p := range t {
		for _, q := range other {
			if p.from != fromText && p == q {
				return true
			}
		}
	}
	return false
}

// plainHost are the characters of hosts that are as policy.NormalHost returns them, unless they
// end with a dot.
const plainHost = "abcdefghijklmnopqrstuvwxyz0123456789-_."

// setFacts sets what the policy is to know of a request, and returns its API key and its
// user. It reports false for a path that has two meanings. The frequent forms are taken as they
// are, and all others are for functions: see package batch.
func setFacts(t *compiledPolicy, f *policy.Facts, r *http.Request) (key, user string, ok bool) {
	key = ""
	user = ""
	if values := r.Header[t.key]; len(values) == 1 { // no header has the name ""
		key = strings.TrimPrefix(values[0], "Bearer ")
	}
	if !strings.HasPrefix(key, policy.KeyPrefix) || strings.TrimSpace(key) != key {
		key, user = senderOf(t, r)
	}
	f.RejectUnknown = t.reject
	f.Method = r.Method
	f.Header = r.Header
	f.KeyHeaders = t.headers
	f.Tier = t.fixedTier
	if t.varies {
		setVarying(t, f, r)
	}
	f.Address = addressOf(t.addresses, r)
	f.Host = r.Host
	if strings.Trim(r.Host, plainHost) != "" || strings.HasSuffix(r.Host, ".") {
		f.Host = policy.NormalHost(r.Host)
	}
	f.Path = r.URL.EscapedPath()
	if path.Clean("/"+f.Path) != f.Path || strings.ContainsAny(f.Path, "%\\;") {
		return key, user, setPath(f)
	}
	return key, user, true
}

// senderOf is the API key and the user of a request.
func senderOf(t *compiledPolicy, r *http.Request) (key, user string) {
	key = ""
	user = ""
	if t.keyText != nil {
		key = policy.Bearer(textOf(t.keyText, r, t.addresses))
	}
	if key == "" && t.user != nil {
		user = textOf(t.user, r, t.addresses)
	}
	return key, user
}

// setVarying sets what is fixed in most configurations.
func setVarying(t *compiledPolicy, f *policy.Facts, r *http.Request) {
	f.Route = textOf(t.route, r, t.addresses)
	if f.Tier == "" {
		f.Tier = textOf(t.tier, r, t.addresses)
	}
	if f.Tier == "" {
		f.Tier = edge.DefaultTier
	}
}

// addressOf is the address of a client. One that cannot be read is unknown.
func addressOf(a *addresses, r *http.Request) netip.Addr {
	if a.plain {
		if connection, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
			return connection.Addr().Unmap()
		}
	}
	address, _ := parseAddress(a.client(r))
	return address.WithZone("") // a client can choose a long one
}

// setPath gives a path its one form, or reports that it has two meanings.
func setPath(f *policy.Facts) bool {
	normal, err := policy.NormalPath(f.Path)
	f.Path = normal
	return err == nil
}
