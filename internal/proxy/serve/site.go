package serve

import (
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Site is the middleware of one configuration, compiled. The fields are set before Prepare, and do not change
// after it. Functions may be nil. An interpreter is confused by types that refer back to themselves: Request
// refers to Site, and Site refers to Request only through interfaces.
type Site struct {
	Store   ratelimit.Store // see UseStore
	Timeout time.Duration   // of the database; see ratelimit.Store.Take
	OnError settings.OnError
	Fields  settings.Fields
	Salt    *respond.Salt
	Clock   *respond.Clock
	Zones   []*Zone        // all, with those that are off
	Policy  *Policy        // nil without
	Exempt  []netip.Prefix // requests from there are exempt from Zones

	// History records requests; nil records none. Hidden is not recorded, because it holds a secret: see
	// Hide.
	History *history.Writer
	Hidden  Parts

	// Watcher is called with what happens to requests; it may be nil.
	Watcher Watcher
	// Log logs lines for operators. Outage is that of the database; without it, requests without a
	// decision are not logged.
	Log    func(host.Line)
	Outage *host.Outage
	// Report counts the requests; nil counts nothing.
	Report *registry.Report

	// Hits returns further hits of a request: those of a Go program, which has no Zones.
	Hits func(r *http.Request) []ratelimit.Hit

	// Address returns the address of a client. The zero Addr is unknown. assumed means that the address may
	// belong to a balancer.
	Address func(r *http.Request) (address netip.Addr, assumed bool)
	// Recording is called before a request is recorded. It returns the user of the proxy's authentication, or
	// "".
	Recording func(r *http.Request) (user string)
	// Settled is called for each hit that was settled, perhaps by another goroutine.
	Settled func(prefix string, outcome SettleOutcome)

	postgres *store.Store // Store, or nil if Store counts elsewhere

	// reopen calls retry with what replaces closed databases: requests can come long after a reload. If
	// nothing can replace them, it does not call retry.
	reopen func(retry func(again *host.Handle))

	audit   settings.Audit // of the handler, for what the policy says
	invalid host.Sampler   // of costs of responses, in the log
	all     *LimitSet
	none    *LimitSet
	matches bool // one of Zones has a Match

	mu   sync.Mutex // guards sets
	sets map[string]*LimitSet
}

// Watcher is called with what happens to the requests of a Site.
type Watcher interface {
	// Asked follows the question to the policy, with the verdict, or with the Outcome of a request that the
	// policy could not decide.
	Asked(q *Request)
	// Decided follows the decision on the hits of a request, or the failure to decide.
	Decided(q *Request)
}

// Open opens what the site needs, and prepares the site for its first request. It does not touch the network,
// see host.Handle.Prepare.
func (s *Site) Open(p *host.Process, at *host.DataSources) (*host.Handle, error) {
	opened, err := p.Open(at, s.Timeout)
	if err != nil {
		return nil, err
	}
	d := opened.Limits
	s.Salt = d.Salt
	s.Clock = d.Clock
	s.Outage = d.Outage
	s.Report = d.Report
	s.UseStore(d.Store)
	if s.Policy != nil {
		s.Policy.Live = opened.Policy
	}
	s.History = opened.History
	s.Hide()
	for _, z := range s.Zones {
		z.Hit.Limit = d.Limit(z.Hit.Limit)
		for _, w := range z.Warnings() {
			s.Log(host.Line{Level: host.Warn, Setting: w.Field, Text: w.Text, Prefix: z.Limit.Prefix})
		}
	}
	timeout := s.Timeout
	s.reopen = func(retry func(again *host.Handle)) {
		again, err := p.Open(at, timeout)
		if err == nil {
			defer again.Release()
			retry(again)
		}
	}
	s.Prepare()
	return opened, nil
}

// UseStore sets the store. Without UseStore, no request is decided with settings.Local.
func (s *Site) UseStore(counters ratelimit.Store) {
	s.Store = counters
	s.postgres = nil
	if inPostgres, ok := counters.(*store.Store); ok {
		s.postgres = inPostgres
	}
	if s.postgres != nil && s.OnError == settings.Local {
		s.postgres.UseLocal()
	}
}

// setAudit reads which requests are in the audit log: text is the setting of the handler, and the default of
// its limits. It returns the one that records most, which is off if nothing is to be recorded.
func (s *Site) setAudit(text string, hasHistory bool) (settings.Audit, error) {
	most := settings.Audit{Level: settings.AuditOff}
	unset := settings.Audit{Level: settings.AuditOff}
	if hasHistory {
		unset.Level = settings.AuditDenied
	}
	var err error
	if s.audit, err = settings.ParseAudit(text, unset); err != nil {
		return most, err
	}
	if s.Policy != nil {
		most = s.audit
	}
	for _, z := range s.Zones {
		if z.audit, err = settings.ParseAudit(z.Configured["audit"], s.audit); err != nil {
			return most, err
		}
		most = settings.MoreAudit(most, z.audit)
	}
	return most, nil
}

// Hide finds out what is not recorded: the parts of a request in the API key of the policy, or in a key that
// is hashed by the configuration.
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
	s.sets = map[string]*LimitSet{}
	s.matches = false
	for i, z := range s.Zones {
		z.Index = i
		s.matches = s.matches || z.Match != nil
	}
	s.all = newLimitSet(s, s.Zones)
	s.none = newLimitSet(s, nil)
}

// Same returns the limits of all requests, or nil if each request has to be asked about: see Begin.
func (s *Site) Same() *LimitSet {
	if s.matches || len(s.Exempt) > 0 || s.Policy != nil || s.all.InFlight || len(s.all.Hits) == 0 {
		return nil
	}
	return s.all
}
