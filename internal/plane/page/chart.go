package page

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// drawing is what is drawn of the state.
type drawing struct {
	Since string
	State struct {
		Banner  struct{ At time.Time }
		Traffic *trafficSection
		Changes struct{ Changes, Rules []changed }
	}
}

// changed is a change of the policy.
type changed struct {
	At                   time.Time
	By, Kind, Name, Text string
}

// chart has what was allowed, what was refused and what had no decision a second, each on a scale of its own: few
// refusals stay visible beside many requests. Changes of the policy and outages are over all of them. One unit across
// is a second.
type chart struct {
	Time           string
	Panes          []pane
	Marks, Outages string
	Ticks, Flags   []tick
	Rows           []row
	Minutes        [][]string // a time, and the rates of the panes, the latest first
}

type pane struct{ ID, Title, Value, Sum, Most, Area, Line string }

// tick is a text at a place in percent.
type tick struct {
	At   float64
	Text string
}

// row is a change or an outage of this hour.
type row struct {
	at                    time.Time
	Flag, Class, Text, By string
	Time                  string
}

const paneHeight, tickTime = 56, 10 * time.Minute

// chart draws the lines; nil: nothing is known yet.
func (d *drawing) chart() *chart {
	t := d.State.Traffic
	if t == nil {
		return nil
	}
	c := &chart{Time: "not known yet"}
	counts, sums := map[time.Time][3]int64{}, [3]int64{}
	for _, m := range t.Minutes {
		counts[m.Time.UTC()] = [3]int64{m.Allowed, m.Refused, m.Failed}
		sums = [3]int64{sums[0] + m.Allowed, sums[1] + m.Refused, sums[2] + m.Failed}
	}
	var values [3][]float64
	for at := t.From.UTC(); !at.Add(time.Minute).After(t.Until); at = at.Add(time.Minute) { // the last one is under way
		point := []string{at.Format("15:04")}
		for i, n := range counts[at] {
			values[i] = append(values[i], float64(n)/60)
			point = append(point, rateText(float64(n)/60))
		}
		c.Minutes = slices.Insert(c.Minutes, 0, point)
	}
	for i, name := range []string{"Allowed", "Refused", "No decision"} {
		p := pane{ID: []string{"allowed", "refused", "failed"}[i], Title: name, Value: dash, Sum: "none in 1 h"}
		if sums[i] > 0 {
			p.Sum, p.Most = number(sums[i])+" in 1 h", ", at most "+rateText(slices.Max(append(values[i], 0)))
			p.Line, p.Area = lines(values[i])
		}
		if len(c.Minutes) > 0 {
			p.Value = c.Minutes[0][i+1]
			c.Time = "last full minute, " + c.Minutes[0][0]
		}
		c.Panes = append(c.Panes, p)
	}
	for at := t.From.Truncate(tickTime); at.Before(t.From.Add(trafficTime)); at = at.Add(tickTime) {
		if x := percentOf(at.Sub(t.From)); x > 4 && x < 96 {
			c.Ticks = append(c.Ticks, tick{x, at.UTC().Format("15:04")})
		}
	}
	c.mark(t, d.State.Changes.Changes, d.State.Banner.At)
	return c
}

func percentOf(since time.Duration) float64 {
	return math.Round(1000*float64(since)/float64(trafficTime)) / 10
}

// lines are the paths of a line through values a minute apart and of the area below it.
func lines(values []float64) (line, area string) {
	most, top := slices.Max(values), 0.0
	power := math.Pow(10, math.Floor(math.Log10(max(most, 1))))
	for _, step := range []float64{1, 2, 5, 10} {
		if top = step * power; top >= most {
			break
		}
	}
	var path strings.Builder
	for i, value := range values {
		fmt.Fprintf(&path, "L%d %.1f", 60*i, paneHeight-1-value/top*(paneHeight-4))
	}
	line = "M" + strings.TrimPrefix(path.String(), "L")
	return line, fmt.Sprintf("%sL%d %dL0 %dZ", line, 60*max(len(values)-1, 0), paneHeight, paneHeight)
}

// mark adds the changes of the policy and the outages.
func (c *chart) mark(t *trafficSection, changes []changed, now time.Time) {
	const apart = 6 // percent between two flags
	free := 0.0
	for _, group := range slices.Backward(joined(changes)) {
		first, number := group[len(group)-1], fmt.Sprint(len(c.Rows)+1)
		r := row{at: first.At, Flag: number, Text: first.Text, By: "by " + first.By}
		if more := len(group) - 1; more > 0 {
			r.Text += fmt.Sprintf(", and %d more", more)
		}
		c.Rows = append(c.Rows, r)
		x := percentOf(first.At.Sub(t.From))
		c.Marks += fmt.Sprintf("M%d 0V%d", int(first.At.Sub(t.From).Seconds()), paneHeight)
		if x >= free {
			c.Flags, free = append(c.Flags, tick{min(max(x, 3), 97), number}), x+apart
		}
	}
	for _, o := range t.Outages {
		from, until := o.From.Sub(t.From).Seconds(), min(o.Until.Sub(t.From), trafficTime).Seconds()
		c.Outages += fmt.Sprintf("M%d 0H%dV%dH%dZ", int(max(from, 0)), int(until), paneHeight, int(max(from, 0)))
		c.Rows = append(c.Rows, row{at: o.From, Flag: "!", Class: "outage", Text: "Outage: " + o.Text})
	}
	slices.SortStableFunc(c.Rows, func(a, b row) int { return b.at.Compare(a.at) })
	for i := range c.Rows {
		c.Rows[i].Time = timeText(c.Rows[i].at.Format(time.RFC3339), now, time.TimeOnly)
	}
}

// joined joins the changes that one role made within some seconds, which come newest first: a file with a policy makes
// many.
func joined(changes []changed) (groups [][]changed) {
	for _, c := range changes {
		last := len(groups) - 1
		if last >= 0 && groups[last][0].By == c.By && groups[last][len(groups[last])-1].At.Sub(c.At) < 5*time.Second {
			groups[last] = append(groups[last], c)
		} else {
			groups = append(groups, []changed{c})
		}
	}
	return groups
}

// period is a time since which the lists may count.
type period struct{ Value, Text string }

// periods are those that can be chosen: fixed ones, and since the last changes of rules, limits and tiers.
func (d *drawing) periods() []period {
	all := []period{
		{lastHour, "1 hour ago"}, {"24h", "24 hours ago"}, {"7d", "7 days ago"},
		{"time", "a time of the last 24 hours …"},
	}
	add := func(at, text string) {
		all = append(all, period{at, timeText(at, d.State.Banner.At, "15:04") + ", " + text})
	}
	groups := joined(d.State.Changes.Rules)
	for _, group := range groups[:min(len(groups), 10)] {
		at := group[len(group)-1].At
		slices.SortStableFunc(group, func(a, b changed) int {
			return slices.Index(ruleKinds, a.Kind) - slices.Index(ruleKinds, b.Kind)
		})
		var names []string
		for _, c := range group {
			if !slices.Contains(names, c.Name) {
				names = append(names, c.Name)
			}
		}
		text := "changed: " + strings.Join(names[:min(len(names), 2)], ", ")
		if more := len(names) - 2; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		add(at.UTC().Format(time.RFC3339Nano), text)
	}
	if !slices.ContainsFunc(all, func(p period) bool { return p.Value == d.Since }) && d.Since != "" {
		add(d.Since, "chosen")
	}
	return all
}
