package page

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
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
	Recording bool           `json:"recording"` // the history has requests of this hour
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

// The levels and the modes of a banner.
const (
	levelOK, levelWarn, levelBad = "ok", "warn", "bad"

	modeEnforcing, modeDown, modeNoProxies    = "enforcing", "database_down", "no_proxies"
	modeRecovering, modeCannot, modeUndecided = "recovering", "cannot_decide", "requests_without_a_decision"
)

// headline is a mode for people.
func headline(mode string) string {
	return strings.ToUpper(mode[:1]) + strings.ReplaceAll(mode[1:], "_", " ")
}

const (
	// recoverTime is for how long the page says that the database is back.
	recoverTime = 15 * time.Second
	// undecidedTime is for how long requests without a decision are news.
	undecidedTime = 2 * time.Minute
	// lostTime is for how long a proxy that vanished needs a look.
	lostTime = 10 * time.Minute
)

// banner says in what state the limits are. The caller holds the mutex.
func (c *collector) banner() bannerSection {
	b := bannerSection{
		At: c.now.UTC(), Level: levelOK, Remarks: []string{}, Recording: len(c.minutes) > 0,
		Database: bannerDatabase{Up: c.up}, Loading: c.up && c.loading(),
	}
	if c.now.IsZero() {
		b.At = time.Now().UTC()
	}
	if c.up {
		latency := float64(c.latency.Microseconds()) / 1000
		b.Database.LatencyMS = &latency
		c.judge(&b)
	} else {
		c.judgeDown(&b)
	}
	b.Figures = c.figures(&b)
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

// onErrorText says where to see what becomes of requests without a decision.
const onErrorText = "Without the database, each proxy does with requests what on_error of its configuration says."

// judgeDown says that the database is down.
func (c *collector) judgeDown(b *bannerSection) {
	since := c.since.UTC()
	b.Database.Error, b.Database.Since = &c.failure, &since
	b.set(levelBad, modeDown, "The database does not answer since "+since.Format(time.TimeOnly)+" UTC.")
	b.At = time.Now().UTC()
	known := "Nothing is known yet."
	if c.answered {
		known = "What is below is of " + clock(c.now, b.At) + "."
	}
	b.Remarks = append(b.Remarks, known+" "+reason(c.failure), onErrorText)
}

// judge sets the mode, and says what needs a look.
func (c *collector) judge(b *bannerSection) {
	var live, unable []string
	for i := range c.proxies {
		if p := &c.proxies[i]; p.Live && !p.Elsewhere {
			live = append(live, p.Node)
			if p.Cannot != nil {
				unable = append(unable, p.Node)
			}
		}
	}
	if len(live) == 0 {
		b.set(levelWarn, modeNoProxies, "No proxy counts in this database.")
		return
	}
	outages := c.outages()
	switch {
	case len(unable) > 0:
		b.set(levelBad, modeCannot, nodeNames(unable)+" cannot decide: "+plural(len(unable), "it does", "they do")+
			" with all requests what on_error says.")
	case len(outages) > 0 && c.now.Sub(outages[len(outages)-1].Until) < undecidedTime:
		b.set(levelBad, modeUndecided, outages[len(outages)-1].Text)
		b.Remarks = append(b.Remarks, onErrorText)
	case time.Since(c.back) < recoverTime:
		b.set(levelWarn, modeRecovering, "The database answers again since "+c.back.UTC().Format(time.TimeOnly)+" UTC.")
	default:
		b.set(levelOK, modeEnforcing, "Limits are enforced by "+counted(int64(len(live)), "proxy", "proxies")+".")
		if shadows := c.modes["shadow"]; shadows > 0 {
			b.Remarks = append(b.Remarks, fmt.Sprintf("%d of %d rules on trial (shadow) refuse nothing.", shadows, shadows+c.modes["enforce"]))
		}
	}
	if len(outages) > 0 && b.Mode != modeUndecided {
		b.Remarks = append(b.Remarks, outages[len(outages)-1].Text)
	}
	for i := range c.proxies {
		for _, r := range c.remarks(&c.proxies[i]) {
			if r.loud {
				b.warn(c.proxies[i].Node + " " + r.Text)
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
}

const notKnown = "not known"

// figures are the numbers of the banner: those of the last full minute, how long the database takes, and who obeys the
// newest policy.
func (c *collector) figures(b *bannerSection) []shownText {
	figures := []shownText{{"Allowed", dash, ""}, {"Refused", dash, ""}, {"No decision", dash, ""}}
	if !c.up {
		return append(figures, shownText{"Database", "down", levelBad}, shownText{"Newest policy", notKnown, levelWarn})
	}
	if len(c.minutes) > 0 {
		var last admin.Minute
		for _, m := range c.minutes {
			if m.Time.Equal(c.now.Truncate(time.Minute).Add(-time.Minute)) {
				last = m
			}
		}
		for i, n := range []int64{last.Allowed, last.Refused, last.Failed} {
			figures[i].Text = rateText(float64(n) / 60)
		}
		if last.Failed > 0 {
			figures[2].Kind = levelBad
		}
	}
	policy := shownText{"Newest policy", "obeyed by all", ""}
	var behind []string
	for i := range c.proxies {
		if p := &c.proxies[i]; p.Live && p.Policy && (p.Behind == nil || *p.Behind > 0) {
			behind = append(behind, p.Node)
		}
	}
	if len(behind) > 0 {
		policy.Text, policy.Kind = "not by "+nodeNames(behind), levelWarn
	}
	return append(figures, shownText{"Database", millisecondsText(*b.Database.LatencyMS), ""}, policy)
}

// reason is an error with its last part first: the beginning says only where it happened.
func reason(failure string) string {
	if at := strings.LastIndex(failure, ": "); at >= 0 {
		return "The error is: " + failure[at+2:] + ". In full: " + failure
	}
	return "The error is: " + failure
}
