package edge

import (
	"net/http"
	"net/netip"
	"sync"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Site is the middleware of one configuration, compiled: what Decide does with its requests. The fields are set before
// Prepare, and do not change after it. Functions that are nil do nothing. An interpreter is confused by types that refer back
// to themselves: Request refers to Site, which does not refer to Request but by interfaces.
type Site struct {
	Decider Decider
	Fields  respond.Fields
	Zones   []*Zone        // all, also those that are off
	Policy  *SitePolicy    // nil without
	Exempt  []netip.Prefix // requests from there are exempt from Zones

	// History is where requests are recorded; nil is nowhere. Hidden is what is not recorded, because it holds a secret.
	History *history.Writer
	Hidden  Parts

	// Watcher is told what happens to requests; nil is nobody.
	Watcher Watcher
	// Log logs what an operator should know. Outage is that of the database; nil logs nothing of requests without a decision.
	Log    func(Line)
	Outage *Outage
	// Totals counts the requests; nil counts nothing.
	Totals *Totals

	// Hits returns further hits of a request: those of a Go program, which has no Zones. It may be nil.
	Hits func(r *http.Request) []ratelimit.Hit

	// Address is the address of a client. The zero Addr is unknown. assumed says that it may be that of a balancer.
	Address func(r *http.Request) (address netip.Addr, assumed bool)
	// Recording is called before a request is recorded. It returns the user that the proxy knows, or "". It may be nil.
	Recording func(r *http.Request) (user string)
	// Settled is called for each hit that was settled, perhaps by another goroutine.
	Settled func(prefix string, outcome SettleOutcome)
	// Reopen calls retry with the store, and if the site has one with the policy, that have replaced closed ones: requests
	// can come long after a reload. Without such ones it does not call retry.
	Reopen func(retry func(store ratelimit.Store, p *ProxyPolicy))

	audit   history.Audit // of the handler, for what the policy says
	invalid Sampler       // of costs of responses, in the log
	all     *Set
	none    *Set
	matches bool // one of Zones has a Match

	mu   sync.Mutex // guards sets
	sets map[string]*Set
}

// Watcher is told what happens to the requests of a Site.
type Watcher interface {
	// Asked is called when the policy has been asked, with the verdict, or the Outcome of a request that it could not decide.
	Asked(q *Request)
	// Decided is called when the hits of a request have been taken, or could not be.
	Decided(q *Request)
}

// SetAudit reads which requests are in the audit log: text is the setting of the handler, and the default of its limits. It
// returns the one that records most, which is off if nothing is to be recorded. hasHistory says that there is a history.
func (s *Site) SetAudit(text string, hasHistory bool) (history.Audit, error) {
	most := history.Audit{Level: history.AuditOff}
	unset := history.Audit{Level: history.AuditOff}
	if hasHistory {
		unset.Level = history.AuditDenied
	}
	var err error
	if s.audit, err = ParseAudit(text, unset); err != nil {
		return most, err
	}
	if s.Policy != nil {
		most = s.audit
	}
	for _, z := range s.Zones {
		if z.audit, err = ParseAudit(z.Configured["audit"], s.audit); err != nil {
			return most, err
		}
		most = MoreAudit(most, z.audit)
	}
	return most, nil
}

// Hide finds out what is not recorded: what the API key of the policy, or a key that is hashed by the configuration, has a
// placeholder of.
func (s *Site) Hide() {
	var secrets []Text
	if s.Policy != nil && s.Policy.Key != nil {
		secrets = append(secrets, s.Policy.Key)
	}
	for _, z := range s.Zones {
		if z.HashKey != nil && *z.HashKey {
			secrets = append(secrets, z.Key)
		}
	}
	for _, secret := range secrets {
		parts := secret.Parts()
		s.Hidden.User = s.Hidden.User || parts.User
		s.Hidden.Host = s.Hidden.Host || parts.Host
		s.Hidden.Path = s.Hidden.Path || parts.Path
	}
}

// Prepare comes before the first request, when all else is set.
func (s *Site) Prepare() {
	s.sets = map[string]*Set{}
	s.matches = false
	for i, z := range s.Zones {
		z.Index = i
		s.matches = s.matches || z.Match != nil
	}
	s.all = newSet(s, s.Zones)
	s.none = newSet(s, nil)
}

// All is the Set of a request that all limits are for. If it is nil, each request has to be asked about: see Begin.
func (s *Site) All() *Set {
	if s.matches || len(s.Exempt) > 0 || s.Policy != nil || s.all.Flies || len(s.all.Hits) == 0 {
		return nil
	}
	return s.all
}

// logWarnings logs what an operator should know of the limits.
func (s *Site) logWarnings() {
	for _, z := range s.Zones {
		for _, w := range Warnings(&z.Limit, z.Cost) {
			s.Log(Line{Level: Warn, Setting: w.Field, Text: w.Text, Prefix: z.Limit.Prefix})
		}
	}
}
