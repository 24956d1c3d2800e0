package page

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

var errNoAnswer = errors.New("there is no answer yet")

// state returns the sections. While the database is down, all but the banner are as they were, or not known yet. The
// caller holds the mutex.
func (c *collector) state() map[string]any {
	if !c.answered {
		return map[string]any{"banner": c.banner()}
	}
	return map[string]any{
		"banner": c.banner(), "traffic": c.traffic(), "top": c.top, "near": c.near, "proxies": c.proxyList(),
		"bans": banList(c.bans), "changes": map[string]any{"changes": c.changes, "rules": c.ruleChanges},
	}
}

// state returns all sections as JSON.
func (s *Server) state(ctx context.Context) []byte {
	c := s.collector
	c.refresh(ctx, false)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.text == nil {
		c.text = marshal(c.state())
	}
	return c.text
}

// section returns one section.
func (s *Server) section(ctx context.Context, name string) (any, error) {
	c := s.collector
	c.refresh(ctx, name == "near")
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.state()[name]
	if found == nil {
		return nil, &downError{errNoAnswer}
	}
	return found, nil
}

// trafficFrom is when the minutes of the page begin.
func trafficFrom(now time.Time) time.Time {
	return now.Add(time.Minute - trafficTime).Truncate(time.Minute).UTC()
}

// trafficSection has the minutes in which requests came. That in which Until lies is under way.
type trafficSection struct {
	From    time.Time      `json:"from"`
	Until   time.Time      `json:"until"`
	Minutes []admin.Minute `json:"minutes"`
	Outages []outage       `json:"outages"`
}

func (c *collector) traffic() trafficSection {
	t := trafficSection{trafficFrom(c.now), c.now.UTC(), []admin.Minute{}, c.outages()}
	for _, m := range c.minutes {
		if !m.Time.Before(t.From) {
			t.Minutes = append(t.Minutes, m)
		}
	}
	return t
}

// outage is a time with requests without a decision.
type outage struct {
	From     time.Time `json:"from"`
	Until    time.Time `json:"until"`
	Requests int64     `json:"requests"`
	Text     string    `json:"text"`
}

// outages are those of the last hour, by the history.
func (c *collector) outages() []outage {
	found := []outage{}
	for _, m := range c.minutes {
		if m.Failed == 0 || m.Time.Before(trafficFrom(c.now)) {
			continue
		}
		last := len(found) - 1
		if last < 0 || m.Time.Sub(found[last].Until) > time.Minute {
			found = append(found, outage{From: m.Time})
			last++
		}
		found[last].Until = m.Time.Add(time.Minute)
		found[last].Requests += m.Failed
	}
	for i := range found {
		o := &found[i]
		o.Text = fmt.Sprintf("%s had no decision from %s to %s UTC.", counted(o.Requests, "request", "requests"), o.From.UTC().Format("15:04"), o.Until.UTC().Format("15:04"))
	}
	return found
}

// rounded leaves a rate a tenth.
func rounded(f float64) float64 { return float64(int64(f*10+0.5)) / 10 }

func banList(bans []admin.Ban) map[string]any {
	list := map[string]any{"bans": append([]admin.Ban{}, bans[:min(len(bans), mostBans)]...), "total": len(bans)}
	if more := len(bans) - mostBans; more > 0 {
		list["more"] = more
	}
	return list
}

// changesSQL are the changes of the policy in a period, the latest first, at most so many, in words: those of some kinds,
// or of all kinds for NULL.
const changesSQL = `SELECT seq, at, by, kind, ref, key_id, which, before, after, what, kind || ' ' || which AS name,
	kind || ' ' || which || ': ' || array_to_string(what, ', ') AS text
FROM rate_limit_changed WHERE at >= $1::timestamptz AND at < $2::timestamptz AND ($4::text[] IS NULL OR kind = ANY ($4::text[]))
ORDER BY at DESC, seq DESC LIMIT $3::bigint`

// ruleKinds are the kinds of changes after which a limit allows another amount to everybody.
var ruleKinds = []string{"rule", "limit", "tier"}
