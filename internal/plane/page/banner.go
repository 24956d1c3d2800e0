package page

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// bannerSection says in what state the limits are.
type bannerSection struct {
	At        time.Time      `json:"at"`
	Level     string         `json:"level"`
	Mode      string         `json:"mode"`
	Headline  string         `json:"headline"`
	Text      string         `json:"text"`
	Remarks   []string       `json:"notes"`
	Database  bannerDatabase `json:"database"`
	Pause     *admin.Pause   `json:"pause"`
	Now       *edge.Rates    `json:"now"`
	Recording *bool          `json:"recording"` // nil: no proxy has said it
	Loading   bool           `json:"loading"`
	Figures   []shownText    `json:"figures"`
}

// bannerDatabase has an error, and since when there is one, or how long an answer takes.
type bannerDatabase struct {
	Up        bool       `json:"up"`
	Error     *string    `json:"error"`
	Since     *time.Time `json:"since"`
	LatencyMS *float64   `json:"latency_ms"`
}

// The levels and the modes of a banner. Some modes are in ways.
const (
	levelOK, levelWarn, levelBad = "ok", "warn", "bad"

	modeEnforcing, modePaused, modeShadow, modeDown = "enforcing", "paused", "shadow", "database_down"
	modeNoProxies, modeNoLimits                     = "no_proxies", "no_limits"
	modeRecovering, modeCannot                      = "recovering", "cannot_decide"
)

// way is what a proxy does with requests without a decision of the database.
type way struct {
	name, setting string // setting is that of on_error
	mode          string // of the banner, while a proxy does it
	does, do      string // what one proxy does, and several do
	because       string // the end of the sentence, if they do it now
}

const atShare = ", at its share of each limit, because the database makes no decisions."

// ways are in the order in which the banner names them.
var ways = []way{
	{"open", "allow", "failing_open", "lets requests pass", "let requests pass", " without a decision."},
	{"closed", "deny", "failing_closed", "refuses requests", "refuse requests", " without a decision."},
	{"local", "local", "local_limits", "limits by itself", "limit by themselves", atShare},
}

func wayOf(name string) *way {
	return &ways[slices.IndexFunc(ways, func(w way) bool { return w.name == name })]
}

// headline is a mode for people.
func headline(mode string) string {
	return strings.ToUpper(mode[:1]) + strings.ReplaceAll(mode[1:], "_", " ")
}

const (
	// recoverTime is for how long the page says that the database is back.
	recoverTime = 15 * time.Second
	// loadingTime is how long proxies need to notice a page.
	loadingTime = 4 * time.Second
	// lostTime is for how long a proxy that vanished needs a look.
	lostTime = 10 * time.Minute
)

// banner says in what state the limits are. The caller holds the mutex.
func (c *collector) banner() bannerSection {
	b := bannerSection{At: c.now.UTC(), Level: levelOK, Remarks: []string{}, Pause: c.pause, Now: c.rates(), Database: bannerDatabase{Up: c.up}}
	if c.now.IsZero() {
		b.At = time.Now().UTC()
	}
	var live, gone []*proxy
	reports := 0
	for _, p := range c.proxies {
		switch {
		case p.Elsewhere:
			continue
		case !p.Live:
			gone = append(gone, p)
			continue
		}
		live = append(live, p)
		if p.now != nil {
			reports++
			recording := len(p.now.Seen) > 0 || b.Recording != nil && *b.Recording
			b.Recording = &recording
		}
	}
	b.Loading = c.up && (c.loading() || reports < len(live)) && time.Since(c.began) < loadingTime
	if c.up {
		latency := float64(c.latency.Microseconds()) / 1000
		b.Database.LatencyMS = &latency
		c.judge(&b, live, gone, reports == len(live))
	} else {
		c.judgeDown(&b, append(live, gone...))
	}
	b.Figures = c.figures(&b, live)
	return b
}

// set sets the mode, with its headline.
func (b *bannerSection) set(level, mode, text string) {
	b.Level, b.Mode, b.Headline, b.Text = level, mode, headline(mode), text
}

// warn says what needs a look.
func (b *bannerSection) warn(text string) {
	b.Remarks = append(b.Remarks, text)
	if b.Level == levelOK {
		b.Level = levelWarn
	}
}

// judgeDown says what becomes of requests while the database is down.
func (c *collector) judgeDown(b *bannerSection, proxies []*proxy) {
	since := c.since.UTC()
	b.Database.Error, b.Database.Since = &c.failure, &since
	b.set(levelBad, modeDown, "The database does not answer since "+since.Format(time.TimeOnly)+" UTC.")
	b.At, b.Now = time.Now().UTC(), nil
	known := "Nothing is known yet."
	if c.answered {
		known = "What is below is of " + clock(c.now, b.At) + "."
	}
	b.Remarks = append(b.Remarks, known+" "+reason(c.failure))
	b.Remarks = append(b.Remarks, withoutDatabase(proxies)...)
	open, local := len(withWay(proxies, "open")), len(withWay(proxies, "local"))
	switch {
	case len(proxies) == 0 || len(withWay(proxies, "")) > 0: // some proxy does not say it
	case open == len(proxies):
		b.Headline += ": without it, requests pass"
	case open > 0:
		b.Headline += ": without it, some requests pass"
	case local > 0:
		b.Headline += ": without it, proxies limit by themselves"
	default:
		b.Headline += ": without it, requests are refused"
	}
}

// judge sets the mode, and says what needs a look. all is whether all live proxies report.
func (c *collector) judge(b *bannerSection, live, gone []*proxy, all bool) {
	if len(live) == 0 {
		b.set(levelWarn, modeNoProxies, "No proxy counts in this database.")
		if len(gone) > 0 {
			b.Text = "No proxy counts in this database any more."
			b.Remarks = append(b.Remarks, withoutDatabase(gone)...)
		}
		return
	}
	failing := slices.IndexFunc(ways, func(w way) bool { return len(withFailing(live, w.name)) > 0 })
	var unable []*proxy
	for _, p := range live {
		if p.Cannot != nil {
			unable = append(unable, p)
		}
	}
	switch deciding := int64(len(live) - len(unable)); {
	case failing >= 0:
		w := &ways[failing]
		found := withFailing(live, w.name)
		b.set(levelBad, w.mode, nodeNames(found)+" "+plural(len(found), w.does, w.do)+w.because)
	case len(unable) > 0:
		b.set(levelBad, modeCannot, nodeNames(unable)+" cannot decide: "+plural(len(unable), "it does", "they do")+" with all requests what on_error says.")
	case c.recovered(live) != "":
		b.set(levelWarn, modeRecovering, c.recovered(live))
	case c.pause != nil:
		b.set(levelWarn, modePaused, fmt.Sprintf("All limits are paused until %s by %s.", clock(c.pause.Until, b.At), c.pause.PausedBy))
		if c.pause.Reason != nil {
			b.Remarks = append(b.Remarks, "The reason: "+*c.pause.Reason)
		}
	default:
		b.set(levelOK, modeEnforcing, "Limits are enforced by "+counted(deciding, "proxy", "proxies")+".")
		c.addShadows(b, all)
	}
	if outages := c.outages(); len(outages) > 0 && (failing < 0 || ways[failing].name == "local") {
		b.Remarks = append(b.Remarks, outages[len(outages)-1].Text)
	}
	for _, p := range c.proxies {
		for _, r := range c.remarks(p) {
			if r.loud {
				b.warn(p.Node.Node + " " + r.Text)
			}
		}
	}
	for _, w := range c.warnings {
		b.warn("The rule " + w.Rule + ": " + w.Warning + ".")
	}
	if failure := c.failures[ofPolicy]; failure != "" {
		b.warn("What is shown of the policy is old: " + failure)
	}
	if failure := c.failures[ofHistory]; failure != "" {
		b.warn("What is shown of the history is old: " + failure)
	}
	if c.unwatched != "" {
		b.warn("The proxies cannot be told that this page is open, so they report nothing: " + c.unwatched)
	}
}

// recovered says what has just come back; "" if nothing has.
func (c *collector) recovered(live []*proxy) string {
	if time.Since(c.back) < recoverTime {
		return "The database answers again since " + c.back.UTC().Format(time.TimeOnly) + " UTC."
	}
	var again []*proxy
	for _, p := range live {
		if p.now != nil && p.now.Outage == edge.OutageOver {
			again = append(again, p)
		}
	}
	if len(again) == 0 {
		return ""
	}
	return "The database decides again for " + nodeNames(again) + "."
}

// addShadows says which limits refuse nothing. all is whether all proxies have said which limits they have.
func (c *collector) addShadows(b *bannerSection, all bool) {
	shadows, enforced := c.modes["shadow"], c.modes["enforce"]
	for _, s := range c.configs() {
		switch s.Mode {
		case "shadow":
			shadows++
		case "enforce":
			enforced++
		}
	}
	switch {
	case shadows > 0 && enforced == 0:
		b.set(levelWarn, modeShadow, "All limits are on trial: they count, and refuse nothing.")
	case shadows > 0:
		b.Remarks = append(b.Remarks, fmt.Sprintf("%d of %d limits and rules on trial (shadow) refuse nothing.", shadows, shadows+enforced))
	case enforced == 0 && all && !c.loading():
		b.set(levelWarn, modeNoLimits, "There are no limits: all requests pass.")
	}
}

const notKnown = "not known"

// figures are the numbers of the banner.
func (c *collector) figures(b *bannerSection, live []*proxy) []shownText {
	figures := []shownText{{"Allowed", dash, ""}, {"Refused", dash, ""}, {"No decision", dash, ""}}
	if now := b.Now; now != nil {
		figures[0].Text, figures[1].Text, figures[2].Text = rateText(now.Allowed), rateText(now.Refused), rateText(now.Failed)
		if now.Failed > 0 {
			figures[2].Kind = levelBad
		}
	}
	way, before := wayOf("open"), ""
	if b.Mode == wayOf("local").mode {
		way = wayOf("local")
	}
	found := withFailing(live, way.name)
	if !c.up {
		found, before = withWay(live, way.name), "without it: "
	}
	fails := shownText{headline(way.mode), "no proxy", ""}
	switch {
	case len(found) == 1:
		fails.Text, fails.Kind = before+found[0].Node.Node, levelBad
	case len(found) > 0:
		fails.Text, fails.Kind = before+counted(int64(len(found)), "proxy", "proxies"), levelBad
	case !c.up && (len(live) == 0 || len(withWay(live, "")) > 0):
		fails.Text, fails.Kind = notKnown, levelWarn
	}
	if !c.up {
		policy := shownText{"Newest policy", notKnown, levelWarn}
		return append(figures, fails, shownText{"Database", "down", levelBad}, policy)
	}
	policy := shownText{"Newest policy", "obeyed by all", ""}
	behind := func(p *proxy) bool { return p.Live && p.Policy && (p.Behind == nil || *p.Behind > 0) }
	if found := slices.DeleteFunc(slices.Clone(c.proxies), func(p *proxy) bool { return !behind(p) }); len(found) > 0 {
		policy.Text, policy.Kind = "not by "+nodeNames(found), levelWarn
	}
	return append(figures, fails, shownText{"Database", millisecondsText(*b.Database.LatencyMS), ""}, policy)
}

// reason is an error with its last part first: the beginning says only where it happened.
func reason(failure string) string {
	if at := strings.LastIndex(failure, ": "); at >= 0 {
		return "The error is: " + failure[at+2:] + ". In full: " + failure
	}
	return "The error is: " + failure
}

// withFailing are the proxies that do something with requests without a decision now, see failing.
func withFailing(proxies []*proxy, way string) []*proxy {
	return slices.DeleteFunc(slices.Clone(proxies), func(p *proxy) bool { return p.failing() != way })
}

// withWay are the proxies that do something with requests without a decision by their settings, see proxy.without.
// The way of a proxy that does not report is "".
func withWay(proxies []*proxy, way string) []*proxy {
	return slices.DeleteFunc(slices.Clone(proxies), func(p *proxy) bool { return p.without() != way })
}

// withoutDatabase says what proxies do by their settings while they cannot reach the database.
func withoutDatabase(proxies []*proxy) (remarks []string) {
	for i := range ways {
		w := &ways[i]
		if found := withWay(proxies, w.name); len(found) > 0 {
			remarks = append(remarks, fmt.Sprintf("Without the database, %s %s (on_error %s).", nodeNames(found), plural(len(found), w.does, w.do), w.setting))
		}
	}
	if unknown := withWay(proxies, ""); len(unknown) > 0 {
		remarks = append(remarks, "What "+nodeNames(unknown)+" "+plural(len(unknown), "does", "do")+" without the database is not known here: see on_error in the configuration.")
	}
	return remarks
}
