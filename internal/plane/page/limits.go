package page

import (
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// shownConfig is a limit of configurations, and the proxies that have it.
type shownConfig struct {
	Prefix    string   `json:"prefix"`
	Key       string   `json:"key"`
	Algorithm string   `json:"algorithm"`
	Text      string   `json:"text"` // the amount for people
	Mode      string   `json:"mode"`
	OnError   string   `json:"on_error"`
	Settle    string   `json:"settle"`
	Durable   bool     `json:"durable"`
	Lease     float64  `json:"lease"`
	InFlight  *int64   `json:"in_flight"` // of a limit in_flight: requests that run now, of all keys
	Nodes     []string `json:"nodes"`
	of        edge.ReportedLimit
}

var calendars = []string{"", "day", "week", "month", "year"}

// configs are the different limits of the configurations of live proxies, in the order of their prefixes.
func (c *collector) configs() []*shownConfig {
	all := []*shownConfig{}
	known := map[edge.ReportedLimit]*shownConfig{}
	for _, p := range c.proxies {
		if !p.reports() {
			continue
		}
		for _, l := range p.now.Limits {
			s := known[l]
			if s == nil {
				s = &shownConfig{
					Prefix: l.Limit.Prefix, Key: shortKey.Replace(l.Key), Algorithm: l.Limit.Algorithm.String(), Text: amountText(&l.Limit),
					Mode: l.Mode, OnError: l.OnError, Settle: l.Settle,
					Durable: l.Limit.Durable, Lease: l.Limit.Lease, of: l,
				}
				if running := c.flights[s.Prefix]; l.Limit.Algorithm == ratelimit.InFlight && c.flights != nil {
					s.InFlight = &running
				}
				known[l] = s
				all = append(all, s)
			}
			s.Nodes = append(s.Nodes, p.Node.Node)
		}
	}
	slices.SortStableFunc(all, func(a, b *shownConfig) int { return strings.Compare(a.Prefix, b.Prefix) })
	return all
}

// limits are those of all configurations. It takes the mutex.
func (c *collector) limits() []*ratelimit.Limit {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*ratelimit.Limit
	seen := map[ratelimit.Limit]bool{}
	for _, s := range c.configs() {
		l := s.of.Limit
		l.Lease, l.SynchronousCommit = 0, false // of a proxy, and not of the counters
		if !seen[l] && l.Validate() == nil {
			seen[l] = true
			all = append(all, &l)
		}
	}
	return all
}

// shortKey has the placeholders of Caddy as Caddyfiles have them.
var shortKey = strings.NewReplacer("{http.request.header.", "{header.", "{http.vars.client_ip}", "{client_ip}", "{http.request.", "{")

// amountText is the amount of a limit for people.
func amountText(l *ratelimit.Limit) string {
	text := number(l.Events)
	switch {
	case l.Calendar > 0 && int(l.Calendar) < len(calendars):
		text += " in a " + calendars[l.Calendar]
	case l.Algorithm == ratelimit.InFlight:
		text += " in flight"
	default:
		text += " in " + span(l.Window)
	}
	if l.Burst > 0 {
		text += ", " + number(l.Burst) + " at once"
	}
	return text
}
