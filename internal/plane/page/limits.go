package page

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// shownConfig is a limit of configurations, and the proxies that have it.
type shownConfig struct {
	Prefix        string   `json:"prefix"`
	Key           string   `json:"key"`
	Algorithm     string   `json:"algorithm"`
	Quota         int64    `json:"quota"`
	WindowSeconds *float64 `json:"window_seconds"`
	Calendar      *string  `json:"calendar"`
	Burst         *int64   `json:"burst"`
	Mode          string   `json:"mode"`
	OnError       string   `json:"on_error"`
	Lease         bool     `json:"lease"`
	Durable       bool     `json:"durable"`
	Varies        bool     `json:"varies"`
	Settle        *string  `json:"settle"`
	WaitSeconds   *float64 `json:"wait_seconds"`
	InFlight      *int64   `json:"in_flight"`
	Nodes         []string `json:"nodes"`
	Text          string   `json:"text"`
	Line          string   `json:"line"` // all of it for people
}

// inFlight is the algorithm of limits of requests in flight.
var inFlight = ratelimit.InFlight.String()

var calendars = []string{"", "day", "week", "month", "year"}

func (c *collector) limitList() map[string]any {
	all := []*shownConfig{}
	known := map[string]*shownConfig{}
	for _, p := range c.proxies {
		if p.now == nil || !p.Live {
			continue
		}
		for _, h := range p.now.Handlers {
			for _, l := range h.Limits {
				key := fmt.Sprint(l, h.OnError)
				s := known[key]
				if s == nil {
					s = configOf(&l, h.OnError)
					if running := c.flights[l.Prefix]; l.Algorithm == inFlight && c.flights != nil {
						s.InFlight = &running
					}
					known[key] = s
					all = append(all, s)
				}
				if !slices.Contains(s.Nodes, p.Node.Node) {
					s.Nodes = append(s.Nodes, p.Node.Node)
				}
			}
		}
	}
	for _, s := range all {
		s.Line = s.line()
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Prefix < all[j].Prefix })
	return map[string]any{"limits": all}
}

// shortKey has the placeholders of Caddy as Caddyfiles have them.
var shortKey = strings.NewReplacer("{http.request.header.", "{header.", "{http.vars.client_ip}", "{client_ip}", "{http.request.", "{")

func configOf(l *shownLimit, onError string) *shownConfig {
	s := &shownConfig{Prefix: l.Prefix, Key: shortKey.Replace(l.Key), Algorithm: l.Algorithm, Quota: l.Events, Mode: l.Mode, OnError: onError, Lease: l.Lease > 0, Durable: l.Durable, Varies: l.Varies}
	if l.Burst > 0 {
		s.Burst = &l.Burst
	}
	switch {
	case l.Calendar > 0 && l.Calendar < len(calendars):
		s.Calendar = &calendars[l.Calendar]
		s.Text = fmt.Sprintf("%s in a %s", number(l.Events), calendars[l.Calendar])
	case l.Algorithm == inFlight:
		s.Text = number(l.Events) + " in flight"
	default:
		window := time.Duration(l.WindowUS) * time.Microsecond
		seconds := window.Seconds()
		s.WindowSeconds = &seconds
		s.Text = fmt.Sprintf("%s in %s", number(l.Events), span(window))
	}
	if l.Burst > 0 {
		s.Text += ", " + number(l.Burst) + " at once"
	}
	if l.Settle != "" {
		s.Settle = &l.Settle
	}
	if l.WaitMS > 0 {
		seconds := (time.Duration(l.WaitMS) * time.Millisecond).Seconds()
		s.WaitSeconds = &seconds
	}
	return s
}

// line is the limit for people.
func (s *shownConfig) line() string {
	text := fmt.Sprintf("%s: %s for each %s, %s, %s, on_error %s", s.Prefix, s.Text, s.Key, s.Algorithm, s.Mode, s.OnError)
	if s.Settle != nil {
		text += ", settle " + *s.Settle
	}
	if s.WaitSeconds != nil {
		text += ", requests wait up to " + span(time.Duration(*s.WaitSeconds*float64(time.Second)))
	}
	if s.InFlight != nil {
		text += "; " + number(*s.InFlight) + " in flight now, of all keys"
	}
	return text + "; in " + strings.Join(s.Nodes, ", ")
}
