package page

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

type bannerSection struct {
	At        time.Time      `json:"at"`
	Level     string         `json:"level"`
	Mode      string         `json:"mode"`
	Text      string         `json:"text"`
	Remarks   []string       `json:"notes"`
	Database  bannerDatabase `json:"database"`
	Policy    bannerPolicy   `json:"policy"`
	Pause     *admin.Pause   `json:"pause"`
	Now       *rates         `json:"now"`
	Recording *bool          `json:"recording"` // nil: no proxy has said it
	Loading   bool           `json:"loading"`
}

type bannerDatabase struct {
	Up           bool       `json:"up"`
	Error        *string    `json:"error"`
	Since        *time.Time `json:"since"`
	LatencyMS    *float64   `json:"latency_ms"`
	ProxiesP50MS *float64   `json:"proxies_p50_ms"`
	ProxiesP99MS *float64   `json:"proxies_p99_ms"`
}

type bannerPolicy struct {
	NewestSeq *int64        `json:"newest_seq"`
	Behind    []behindProxy `json:"behind"`
	AllObey   *bool         `json:"all_obey"` // nil: not known
}

// behindProxy is a proxy that does not obey the newest policy. Changes is nil if it is not known how far it is.
type behindProxy struct {
	Node    string `json:"node"`
	Changes *int64 `json:"changes"`
}

// The levels and the modes of a banner.
const (
	levelOK, levelWarn, levelBad = "ok", "warn", "bad"

	modeEnforcing, modePaused, modeShadow, modeOpen, modeClosed = "enforcing", "paused", "shadow", "failing_open", "failing_closed"
	modeLocal, modeDown, modeNoProxies, modeNoLimits            = "failing_local", "database_down", "no_proxies", "no_limits"
)

const (
	// failingTime is for how long after a request without a decision a proxy is failing.
	failingTime = 10 * time.Second
	// loadingTime is how long proxies need to notice a page.
	loadingTime = 4 * time.Second
)

// banner says in what state the limits are. The caller holds the mutex.
func (c *collector) banner() bannerSection {
	now := c.now
	if now.IsZero() {
		now = time.Now()
	}
	b := bannerSection{At: now.UTC(), Level: levelOK, Remarks: []string{}, Pause: c.pause, Now: c.rates(), Policy: c.policyState()}
	var live, gone []*proxy
	reports := 0
	for _, p := range c.proxies {
		if p.Elsewhere {
			continue
		}
		if !p.Live {
			gone = append(gone, p)
			continue
		}
		live = append(live, p)
		if p.now != nil {
			reports++
			recording := p.now.History || b.Recording != nil && *b.Recording
			b.Recording = &recording
		}
	}
	b.Loading = c.up && (c.asking > 0 || reports < len(live)) && time.Since(c.began) < loadingTime
	b.Database = c.databaseState(live)
	open, closed, local := failing(live)
	switch {
	case !c.up:
		b.Level, b.Mode = levelBad, modeDown
		b.At = time.Now().UTC()
		b.Now = nil
		b.Text = "The database does not answer" + c.sinceText() + "."
		b.Remarks = append(b.Remarks, withoutDatabase(append(live, gone...))...)
		return b
	case len(live) == 0:
		b.Level, b.Mode, b.Text = levelWarn, modeNoProxies, "No proxy counts in this database."
		if len(gone) > 0 {
			b.Text = "No proxy counts in this database any more."
			b.Remarks = append(b.Remarks, withoutDatabase(gone)...)
		}
		return b
	case len(open) > 0:
		b.Level, b.Mode = levelBad, modeOpen
		b.Text = "Failing open: " + nodeNames(open) + " " + plural(len(open), "lets", "let") + " requests pass without a decision."
	case len(closed) > 0:
		b.Level, b.Mode = levelBad, modeClosed
		b.Text = "Failing closed: " + nodeNames(closed) + " " + plural(len(closed), "refuses", "refuse") + " requests without a decision."
	case len(local) > 0:
		b.Level, b.Mode = levelBad, modeLocal
		b.Text = "Failing over to local limits: " + nodeNames(local) + " " + plural(len(local), "limits by itself, at its share", "limit by themselves, each at its share") + " of each limit, because the database makes no decisions."
	case c.pause != nil:
		b.Level, b.Mode = levelWarn, modePaused
		b.Text = fmt.Sprintf("All limits are paused until %s by %s.", clock(c.pause.Until, now), c.pause.PausedBy)
		if c.pause.Reason != nil {
			b.Remarks = append(b.Remarks, "The reason: "+*c.pause.Reason)
		}
	default:
		b.Mode, b.Text = modeEnforcing, fmt.Sprintf("Limits are enforced by %s.", plural(len(live), "1 proxy", fmt.Sprintf("%d proxies", len(live))))
		c.addShadows(&b, reports == len(live))
	}
	c.addRemarks(&b, live, gone)
	return b
}

// addShadows says which limits refuse nothing. all is whether all proxies have said which limits they have.
func (c *collector) addShadows(b *bannerSection, all bool) {
	shadows, enforced := c.modes["shadow"], c.modes["enforce"]
	seen := map[string]bool{}
	for _, p := range c.proxies {
		if p.now == nil || !p.Live {
			continue
		}
		for _, h := range p.now.Handlers {
			for _, l := range h.Limits {
				switch key := fmt.Sprint(l); {
				case seen[key]:
				case l.Mode == "shadow":
					shadows++
				case l.Mode == "enforce":
					enforced++
				}
				seen[fmt.Sprint(l)] = true
			}
		}
	}
	switch {
	case shadows > 0 && enforced == 0:
		b.Level, b.Mode, b.Text = levelWarn, modeShadow, "All limits are on trial: they count, and refuse nothing."
	case shadows > 0:
		b.Remarks = append(b.Remarks, fmt.Sprintf("%d of %d limits and rules %s on trial (shadow), and %s nothing.", shadows, shadows+enforced, plural(int(shadows), "is", "are"), plural(int(shadows), "refuses", "refuse")))
	case enforced == 0 && all && c.asking == 0:
		b.Level, b.Mode, b.Text = levelWarn, modeNoLimits, "There are no limits: all requests pass."
	}
}

// addRemarks says what else needs a look.
func (c *collector) addRemarks(b *bannerSection, live, gone []*proxy) {
	warn := func(text string) {
		b.Remarks = append(b.Remarks, text)
		if b.Level == levelOK {
			b.Level = levelWarn
		}
	}
	for _, p := range b.Policy.Behind {
		if p.Changes == nil {
			warn(p.Node + " has not read the policy yet.")
		} else {
			warn(fmt.Sprintf("%s has yet to apply %s of the policy.", p.Node, plural(int(*p.Changes), "1 change", fmt.Sprintf("%d changes", *p.Changes))))
		}
	}
	for _, p := range gone {
		text := fmt.Sprintf("%s is gone: it was last seen %s ago.", p.Node.Node, span(time.Duration(p.SecondsAgo*float64(time.Second))))
		if p.now != nil {
			text += map[string]string{"open": " If it runs without the database, it lets requests pass.", "local": " If it runs without the database, it limits by itself."}[p.now.without()]
		}
		warn(text)
	}
	for _, p := range live {
		if len(p.Problems) > 0 {
			warn(p.Node.Node + " cannot use " + plural(len(p.Problems), "a rule", "some rules") + ": " + strings.Join(p.Problems, "; "))
		}
		if p.now == nil && !b.Loading {
			b.Remarks = append(b.Remarks, p.Node.Node+" reports nothing: it is of an older version.")
		}
	}
	if failure := c.failures[ofPolicy]; failure != "" {
		warn("What is shown of the policy is old: " + failure)
	}
	if failure := c.failures[ofHistory]; failure != "" {
		warn("What is shown of the history is old: " + failure)
	}
	if c.unwatched != "" {
		warn("The proxies cannot be told that this page is open, so they report nothing: " + c.unwatched)
	}
}

// policyState says which proxies do not obey the newest policy. Without the database nobody knows.
func (c *collector) policyState() bannerPolicy {
	p := bannerPolicy{Behind: []behindProxy{}}
	if !c.up {
		return p
	}
	if len(c.changes) > 0 {
		newest := c.changes[0].Seq
		p.NewestSeq = &newest
	}
	for _, one := range c.proxies {
		if one.Live && one.Policy && (one.Behind == nil || *one.Behind > 0) {
			p.Behind = append(p.Behind, behindProxy{one.Node.Node, one.Behind})
		}
	}
	all := len(p.Behind) == 0
	p.AllObey = &all
	return p
}

func (c *collector) databaseState(live []*proxy) bannerDatabase {
	d := bannerDatabase{Up: c.up}
	if !c.up {
		d.Error = &c.failure
		at := c.since.UTC()
		d.Since = &at
		return d
	}
	latency := milliseconds(float64(c.latency.Microseconds()))
	d.LatencyMS = &latency
	var times, before shownHistogram
	for _, p := range live {
		if p.now != nil && p.before != nil {
			times.add(p.now.stores().Times)
			before.add(p.before.stores().Times)
		}
	}
	d.ProxiesP50MS, d.ProxiesP99MS = percentiles(&times, before)
	return d
}

// percentiles are in milliseconds; nil: nothing was counted since before.
func percentiles(times *shownHistogram, before shownHistogram) (p50, p99 *float64) {
	if us, ok := times.percentile(before, 0.5); ok {
		ms := milliseconds(us)
		p50 = &ms
	}
	if us, ok := times.percentile(before, 0.99); ok {
		ms := milliseconds(us)
		p99 = &ms
	}
	return p50, p99
}

func milliseconds(us float64) float64 { return float64(int64(us/10+0.5)) / 100 }

func (c *collector) sinceText() string {
	if c.since.IsZero() {
		return ""
	}
	return " since " + c.since.UTC().Format(time.TimeOnly) + " UTC"
}

// failing are the proxies that had requests without a decision a moment ago, and those that limit by themselves.
func failing(live []*proxy) (open, closed, local []*proxy) {
	for _, p := range live {
		switch p.failing() {
		case "open":
			open = append(open, p)
		case "closed":
			closed = append(closed, p)
		case "local":
			local = append(local, p)
		}
	}
	return open, closed, local
}

// failing is what the proxy does with requests without a decision of the database, as report.without has it; "" if it
// has none.
func (p *proxy) failing() string {
	if p.now == nil {
		return ""
	}
	failed := !p.failed.IsZero() && time.Since(p.failed) <= failingTime
	switch without := p.now.without(); {
	case failed && without != "local":
		return without
	case p.now.stores().LocalSince > 0:
		return "local"
	case failed:
		return "open" // it could not limit these by itself
	}
	return ""
}

// withoutDatabase says what proxies do by their settings while they cannot reach the database.
func withoutDatabase(proxies []*proxy) []string {
	var unknown []*proxy
	by := map[string][]*proxy{}
	for _, p := range proxies {
		if p.now == nil {
			unknown = append(unknown, p)
		} else {
			by[p.now.without()] = append(by[p.now.without()], p)
		}
	}
	open, local, closed := by["open"], by["local"], by["closed"]
	remarks := []string{}
	if len(open) > 0 {
		remarks = append(remarks, "Without the database, "+nodeNames(open)+" "+plural(len(open), "lets", "let")+" requests pass (on_error).")
	}
	if len(local) > 0 {
		remarks = append(remarks, "Without the database, "+nodeNames(local)+" "+plural(len(local), "limits by itself", "limit by themselves")+" (on_error local).")
	}
	if len(closed) > 0 {
		remarks = append(remarks, "Without the database, "+nodeNames(closed)+" "+plural(len(closed), "refuses", "refuse")+" requests (on_error deny).")
	}
	if len(unknown) > 0 {
		remarks = append(remarks, "What "+nodeNames(unknown)+" "+plural(len(unknown), "does", "do")+" without the database is not known here: see on_error in the configuration.")
	}
	return remarks
}

// nodeNames are up to three names.
func nodeNames(proxies []*proxy) string {
	const most = 3
	var names []string
	for _, p := range proxies {
		names = append(names, p.Node.Node)
	}
	slices.Sort(names)
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	if n := len(names); n > 1 {
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return names[0]
}

// plural is one of two texts.
func plural(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

// clock is a time for people, without the day if it is within a day.
func clock(t, now time.Time) string {
	t = t.UTC()
	if t.Sub(now).Abs() < 24*time.Hour {
		return t.Format(time.TimeOnly) + " UTC"
	}
	return t.Format(time.DateTime) + " UTC"
}
