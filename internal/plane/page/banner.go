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
	Headline  string         `json:"headline"`
	Text      string         `json:"text"`
	Remarks   []string       `json:"notes"`
	Database  bannerDatabase `json:"database"`
	Policy    bannerPolicy   `json:"policy"`
	Pause     *admin.Pause   `json:"pause"`
	Now       *rates         `json:"now"`
	Recording *bool          `json:"recording"` // nil: no proxy has said it
	Loading   bool           `json:"loading"`
	Figures   []shownText    `json:"figures"`
}

type bannerDatabase struct {
	Up        bool       `json:"up"`
	Error     *string    `json:"error"`
	Since     *time.Time `json:"since"`
	LatencyMS *float64   `json:"latency_ms"`
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
	modeRecovering, modeCannot                                  = "recovering", "cannot_decide"
)

// headlines are the modes for people.
var headlines = map[string]string{
	modeEnforcing: "Enforcing", modePaused: "Paused", modeShadow: "Shadow", modeOpen: "Failing open", modeClosed: "Failing closed", modeLocal: "Local limits",
	modeDown: "Database down", modeNoProxies: "No proxies", modeNoLimits: "No limits", modeRecovering: "Recovering", modeCannot: "Cannot decide",
}

const (
	// failingTime is for how long after a request without a decision a proxy is failing, unless it has decisions
	// again. recoverTime is for how long the page says then that the outage is just over.
	failingTime, recoverTime = 10 * time.Second, 15 * time.Second
	// loadingTime is how long proxies need to notice a page.
	loadingTime = 4 * time.Second
	// lostTime is for how long a proxy that vanished needs a look.
	lostTime = 10 * time.Minute
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
	b.Loading = c.up && (c.loading() || reports < len(live)) && time.Since(c.began) < loadingTime
	b.Database = c.databaseState()
	c.judge(&b, live, gone, reports)
	b.Headline = headlines[b.Mode]
	if b.Mode == modeDown {
		b.Headline += downHeadline(append(live, gone...))
	}
	b.Figures = c.figures(&b, live)
	return b
}

// judge sets the mode, and says what needs a look. reports is how many of the live proxies report.
func (c *collector) judge(b *bannerSection, live, gone []*proxy, reports int) {
	open, closed, local := withFailing(live, "open"), withFailing(live, "closed"), withFailing(live, "local")
	var deciding, unable []*proxy
	for _, p := range live {
		if p.Cannot == nil {
			deciding = append(deciding, p)
			continue
		}
		unable = append(unable, p)
		b.Remarks = append(b.Remarks, p.Node.Node+" lacks privileges. Run: "+oneLine(*p.Cannot))
	}
	set := func(level, mode, text string) { b.Level, b.Mode, b.Text = level, mode, text }
	switch {
	case !c.up:
		set(levelBad, modeDown, "The database does not answer since "+c.since.UTC().Format(time.TimeOnly)+" UTC.")
		b.At, b.Now = time.Now().UTC(), nil
		known := "Nothing is known yet."
		if c.sections["proxies"] != nil {
			known = "What is below is of " + clock(c.now, b.At) + "."
		}
		b.Remarks = append(b.Remarks, known+" "+reason(c.failure))
		b.Remarks = append(b.Remarks, withoutDatabase(append(live, gone...))...)
		return
	case len(live) == 0:
		set(levelWarn, modeNoProxies, "No proxy counts in this database.")
		if len(gone) > 0 {
			b.Text = "No proxy counts in this database any more."
			b.Remarks = append(b.Remarks, withoutDatabase(gone)...)
		}
		return
	case len(open) > 0:
		set(levelBad, modeOpen, "Failing open: "+nodeNames(open)+" "+plural(len(open), "lets", "let")+" requests pass without a decision.")
	case len(closed) > 0:
		set(levelBad, modeClosed, "Failing closed: "+nodeNames(closed)+" "+plural(len(closed), "refuses", "refuse")+" requests without a decision.")
	case len(local) > 0:
		set(levelBad, modeLocal, "Failing over to local limits: "+nodeNames(local)+" "+
			plural(len(local), "limits by itself, at its share", "limit by themselves, each at its share")+" of each limit, because the database makes no decisions.")
	case len(unable) > 0:
		set(levelBad, modeCannot, nodeNames(unable)+" cannot decide: "+plural(len(unable), "it does", "they do")+" with all requests what on_error says.")
	case c.recovered(live) != "":
		set(levelWarn, modeRecovering, c.recovered(live))
	case c.pause != nil:
		set(levelWarn, modePaused, fmt.Sprintf("All limits are paused until %s by %s.", clock(c.pause.Until, b.At), c.pause.PausedBy))
		if c.pause.Reason != nil {
			b.Remarks = append(b.Remarks, "The reason: "+*c.pause.Reason)
		}
	default:
		set(levelOK, modeEnforcing, fmt.Sprintf("Limits are enforced by %s.", plural(len(deciding), "1 proxy", fmt.Sprintf("%d proxies", len(deciding)))))
		c.addShadows(b, reports == len(live))
	}
	if outages := c.outages(); len(outages) > 0 && b.Mode != modeOpen && b.Mode != modeClosed {
		b.Remarks = append(b.Remarks, outages[len(outages)-1].Text)
	}
	c.addRemarks(b, live, gone)
}

// recovered says what has just come back; "" if nothing has.
func (c *collector) recovered(live []*proxy) string {
	if time.Since(c.back) < recoverTime {
		return "The database answers again since " + c.back.UTC().Format(time.TimeOnly) + " UTC."
	}
	var again []*proxy
	for _, p := range live {
		if !p.failed.IsZero() && time.Since(p.failed) < failingTime+recoverTime {
			again = append(again, p)
		}
	}
	if len(again) == 0 {
		return ""
	}
	return "The database decides again for " + nodeNames(again) + "."
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
	became := map[string]bool{}
	for _, p := range c.proxies {
		if p.now != nil {
			became[p.now.without()] = true
		}
	}
	how := "had no decision"
	switch {
	case len(became) == 1 && became["open"]:
		how = "passed without a decision"
	case len(became) == 1 && became["closed"]:
		how = "were refused without a decision"
	}
	for i := range found {
		o := &found[i]
		o.Text = fmt.Sprintf("%s %s from %s to %s UTC.", plural(int(o.Requests), "1 request", number(o.Requests)+" requests"), strings.Replace(how, "were", plural(int(o.Requests), "was", "were"), 1),
			o.From.UTC().Format("15:04"), o.Until.UTC().Format("15:04"))
	}
	return found
}

// figures are the numbers of the banner.
func (c *collector) figures(b *bannerSection, live []*proxy) []shownText {
	figures := []shownText{}
	add := func(name, text, kind string) { figures = append(figures, shownText{name, text, kind}) }
	allowed, refused, failed, kind := dash, dash, dash, ""
	if b.Now != nil {
		allowed, refused, failed = rateText(b.Now.Allowed), rateText(b.Now.Refused), rateText(b.Now.Failed)
		if b.Now.Failed > 0 {
			kind = levelBad
		}
	}
	add("Allowed", allowed, "")
	add("Refused", refused, "")
	add("No decision", failed, kind)
	name, way, text := "Failing open", "open", "no proxy"
	if b.Mode == modeLocal {
		name, way = "Local limits", "local"
	}
	found, kind := withFailing(live, way), ""
	if !c.up {
		found, text = withWay(live, way), "no proxy"
		if len(found) == 0 && (len(live) == 0 || len(withWay(live, "")) > 0) {
			text, kind = notKnown, levelWarn
		}
	}
	if len(found) > 0 {
		text, kind = found[0].Node.Node, levelBad
		if len(found) > 1 {
			text = fmt.Sprintf("%d proxies", len(found))
		}
		if !c.up {
			text = "without it: " + text
		}
	}
	add(name, text, kind)
	if c.up {
		add("Database", millisecondsText(b.Database.LatencyMS), "")
	} else {
		add("Database", "down", levelBad)
	}
	switch {
	case !c.up || b.Policy.AllObey == nil:
		add("Newest policy", notKnown, levelWarn)
	case *b.Policy.AllObey:
		add("Newest policy", "obeyed by all", "")
	case len(b.Policy.Behind) == 1:
		add("Newest policy", "not by "+b.Policy.Behind[0].Node, levelWarn)
	default:
		add("Newest policy", fmt.Sprintf("not by %d proxies", len(b.Policy.Behind)), levelWarn)
	}
	return figures
}

const notKnown = "not known"

// downHeadline is what becomes of requests while the database is down; "" if some proxy does not say it.
func downHeadline(live []*proxy) string {
	open, local, silent := len(withWay(live, "open")), len(withWay(live, "local")), len(withWay(live, ""))
	switch {
	case len(live) == 0 || silent > 0:
		return ""
	case open == len(live):
		return ": without it, requests pass"
	case open > 0:
		return ": without it, some requests pass"
	case local > 0:
		return ": without it, proxies limit by themselves"
	}
	return ": without it, requests are refused"
}

// reason is an error with its last part first: the beginning says only where it happened.
func reason(failure string) string {
	if at := strings.LastIndex(failure, ": "); at >= 0 {
		return "The error is: " + failure[at+2:] + ". In full: " + failure
	}
	return "The error is: " + failure
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
	case enforced == 0 && all && !c.loading():
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
		if !p.lost(live) {
			continue
		}
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
			b.Remarks = append(b.Remarks, p.Node.Node+" reports nothing.")
		}
	}
	for _, w := range c.warnings {
		warn("The rule " + w.Rule + ": " + w.Warning + ".")
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

func (c *collector) databaseState() bannerDatabase {
	d := bannerDatabase{Up: c.up}
	if !c.up {
		at := c.since.UTC()
		d.Error, d.Since = &c.failure, &at
		return d
	}
	latency := milliseconds(float64(c.latency.Microseconds()))
	d.LatencyMS = &latency
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

// lost reports whether a proxy vanished a while ago, and none of its name or host decides since.
func (p *proxy) lost(live []*proxy) bool {
	host, _, _ := strings.Cut(p.Node.Node, "/") // as the default of node_name has it
	return !p.Live && p.Ended == nil && p.SecondsAgo < lostTime.Seconds() && !slices.ContainsFunc(live, func(other *proxy) bool {
		same, _, _ := strings.Cut(other.Node.Node, "/")
		return same == host && other.Cannot == nil
	})
}

// withFailing are the proxies that do something with requests without a decision now, see failing.
func withFailing(proxies []*proxy, way string) (found []*proxy) {
	for _, p := range proxies {
		if p.failing() == way {
			found = append(found, p)
		}
	}
	return found
}

// withWay are the proxies that do something with requests without a decision by their settings, see report.without.
// The way of a proxy that does not report is "".
func withWay(proxies []*proxy, way string) (found []*proxy) {
	for _, p := range proxies {
		if p.now == nil && way == "" || p.now != nil && p.now.without() == way {
			found = append(found, p)
		}
	}
	return found
}

// failing is what the proxy does with requests without a decision of the database, as report.without has it; "" if it
// has none.
func (p *proxy) failing() string {
	if p.now == nil {
		return ""
	}
	failed := !p.failed.IsZero() && time.Since(p.failed) <= failingTime && !p.decided.After(p.failed)
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
	remarks := []string{}
	for _, one := range []struct{ way, does, do, how string }{
		{"open", "lets requests pass", "let requests pass", "on_error"}, {"local", "limits by itself", "limit by themselves", "on_error local"},
		{"closed", "refuses requests", "refuse requests", "on_error deny"},
	} {
		if found := withWay(proxies, one.way); len(found) > 0 {
			remarks = append(remarks, fmt.Sprintf("Without the database, %s %s (%s).", nodeNames(found), plural(len(found), one.does, one.do), one.how))
		}
	}
	if unknown := withWay(proxies, ""); len(unknown) > 0 {
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
