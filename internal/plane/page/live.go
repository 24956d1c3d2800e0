package page

import (
	"encoding/json"
	"slices"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// proxy is a row of the registry, with its report.
type proxy struct {
	admin.Node
	now *edge.Report // nil: there is none
}

// newProxy is the proxy of a row. A report that cannot be read, as of a proxy of another version, is none.
func newProxy(n *admin.Node) *proxy {
	p := &proxy{Node: *n}
	if n.Report != nil && (json.Unmarshal(n.Report, &p.now) != nil || p.now.OnError == nil) {
		p.now = nil
	}
	return p
}

// reports reports whether the proxy is live and says what it does.
func (p *proxy) reports() bool { return p.now != nil && p.Live }

// without is what becomes of requests without a decision of the database, as a name of ways, and the first of these if
// it depends on the handler; "" if the proxy does not say it.
func (p *proxy) without() string {
	if p.now == nil {
		return ""
	}
	for _, name := range []string{"open", "local"} {
		if slices.Contains(p.now.OnError, wayOf(name).setting) || len(p.now.OnError) == 0 {
			return name
		}
	}
	return "closed"
}

// failing is what the proxy does now with requests without a decision of the database, as a name of ways; "" if it has
// none.
func (p *proxy) failing() string {
	if !p.reports() {
		return ""
	}
	failed := p.now.Outage == edge.OutageNow
	switch without := p.without(); {
	case failed && without != "local":
		return without
	case p.now.LocalSince > 0:
		return "local"
	case failed:
		return "open" // it could not limit these by itself
	}
	return ""
}

// rates are those of all live proxies; nil while none is known. The caller holds the mutex.
func (c *collector) rates() *edge.Rates {
	var sum *edge.Rates
	for _, p := range c.proxies {
		if p.reports() && p.now.Now != nil {
			if sum == nil {
				sum = &edge.Rates{}
			}
			sum.Allowed += p.now.Now.Allowed
			sum.Refused += p.now.Now.Refused
			sum.Failed += p.now.Now.Failed
		}
	}
	return sum
}
