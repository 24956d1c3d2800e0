package traefikplugin

import (
	"net/http"
	"sync"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// selection finds the limits of a middleware that are for a request. It has a hitTemplate for each set of limits that
// was asked for: a few, because requests to one path have one.
type selection struct {
	zones    []*zone
	matchers []*edge.Matcher // of zones; nil is for all requests
	template func(zones []*zone) *hitTemplate

	mu    sync.Mutex // guards found
	found map[string]*hitTemplate
}

// mostTemplates bounds selection.found: clients choose what their requests match.
const mostTemplates = 256

// newSelection returns nil if all limits are for all requests.
func newSelection(zones []*zone, template func([]*zone) *hitTemplate) *selection {
	s := &selection{zones: zones, template: template, found: map[string]*hitTemplate{}}
	matches := false
	for _, z := range zones {
		s.matchers = append(s.matchers, z.match)
		matches = matches || z.match != nil
	}
	if !matches {
		return nil
	}
	return s
}

// choose returns the template of the limits that are for a request.
func (s *selection) choose(r *http.Request) *hitTemplate {
	set := make([]byte, len(s.matchers))
	for i, m := range s.matchers {
		set[i] = '1'
		if m != nil && !m.Matches(r) {
			set[i] = '0'
		}
	}
	name := string(set)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.found[name]
	if t == nil {
		var zones []*zone
		for i := range set {
			if set[i] == '1' {
				zones = append(zones, s.zones[i])
			}
		}
		t = s.template(zones)
		if len(s.found) >= mostTemplates {
			s.found = map[string]*hitTemplate{}
		}
		s.found[name] = t
	}
	return t
}

// share makes the limits of a template those of all middlewares on the pool.
func (r *registry) share(p *pool, t *hitTemplate) {
	r.shareLimits(p, t.hits)
	for i, limits := range t.byValue {
		if limits == nil {
			continue
		}
		shared := map[string]*ratelimit.Limit{} // requests read the map of the zone in other templates
		for value, limit := range limits {
			one := []ratelimit.Hit{{Limit: limit}}
			r.shareLimits(p, one)
			shared[value] = one[0].Limit
		}
		t.byValue[i] = shared
	}
}
