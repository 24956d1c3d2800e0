package page

import (
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// shownConfig is a limit of configurations, and the proxies that have it.
type shownConfig struct {
	shownLimit
	OnError  string   `json:"on_error"`
	InFlight *int64   `json:"in_flight"` // of a limit in_flight: requests that run now, of all keys
	Nodes    []string `json:"nodes"`
	Text     string   `json:"text"` // the amount for people
}

// inFlight is the algorithm of limits of requests in flight.
var inFlight = ratelimit.InFlight.String()

var calendars = []string{"", "day", "week", "month", "year"}

// configs are the different limits of the configurations of live proxies, in the order of their prefixes.
func (c *collector) configs() []*shownConfig {
	type identity struct {
		limit   shownLimit
		onError string
	}
	all := []*shownConfig{}
	known := map[identity]*shownConfig{}
	for _, p := range c.proxies {
		if p.now == nil || !p.Live {
			continue
		}
		for _, h := range p.now.Handlers {
			for _, l := range h.Limits {
				s := known[identity{l, h.OnError}]
				if s == nil {
					s = &shownConfig{shownLimit: l, OnError: h.OnError, Text: l.amount()}
					known[identity{l, h.OnError}] = s
					all = append(all, s)
				}
				if !slices.Contains(s.Nodes, p.Node.Node) {
					s.Nodes = append(s.Nodes, p.Node.Node)
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *shownConfig) int { return strings.Compare(a.Prefix, b.Prefix) })
	return all
}

func (c *collector) limitList() map[string]any {
	all := c.configs()
	for _, s := range all {
		s.Key = shortKey.Replace(s.Key)
		if running := c.flights[s.Prefix]; s.Algorithm == inFlight && c.flights != nil {
			s.InFlight = &running
		}
	}
	return map[string]any{"limits": all}
}

// limits are those of all configurations as the store has them, if their amounts are known. It takes the mutex.
func (c *collector) limits() []*ratelimit.Limit {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*ratelimit.Limit
	seen := map[ratelimit.Limit]bool{}
	for _, s := range c.configs() {
		if l := s.limit(); l != nil && !s.Varies && !seen[*l] {
			seen[*l] = true
			all = append(all, l)
		}
	}
	return all
}

// shortKey has the placeholders of Caddy as Caddyfiles have them.
var shortKey = strings.NewReplacer("{http.request.header.", "{header.", "{http.vars.client_ip}", "{client_ip}", "{http.request.", "{")

// amount is the amount for people.
func (l *shownLimit) amount() string {
	text := number(l.Events)
	switch {
	case l.Calendar > 0 && l.Calendar < len(calendars):
		text += " in a " + calendars[l.Calendar]
	case l.Algorithm == inFlight:
		text += " in flight"
	default:
		text += " in " + span(time.Duration(l.WindowUS)*time.Microsecond)
	}
	if l.Burst > 0 {
		text += ", " + number(l.Burst) + " at once"
	}
	return text
}
