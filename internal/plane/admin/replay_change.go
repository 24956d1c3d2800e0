package admin

import (
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// apply changes limits in memory as SetRule changes their rows. A test holds both equal.
func (l *replayLimits) apply(rule string, change *ruleChange) {
	for kind, settings := range change.resets {
		for _, setting := range settings {
			l.reset(reset(kind), setting)
		}
	}
	for _, c := range change.limits {
		l.setLimit(rule, c)
	}
	for i, parameter := range change.names {
		name, _, _ := strings.Cut(parameter, " ")
		l.setAll(name, change.values[i])
	}
	// A limit that is new is of the algorithm that is said, and has what is said of all.
	for i, parameter := range change.names {
		name, _, _ := strings.Cut(parameter, " ")
		if events, isAmount := change.values[i].(*int64); isAmount && strings.HasPrefix(name, "per_") {
			l.setPer(rule, name, *events, change)
		}
	}
	slices.SortStableFunc(l.listed, func(a, b RuleLimit) int { return strings.Compare(a.Name, b.Name) })
}

// reset takes a setting back.
func (l *replayLimits) reset(kind reset, setting string) {
	switch kind {
	case resetRule: // of the rule's settings, a replay knows the cost alone
		l.cost, l.costIsSet = 1, true
	case resetWindow:
		l.drop(setting)
	case resetLimits:
		for i := range l.listed {
			switch setting {
			case "burst":
				l.listed[i].Burst = nil
			case "on_exceed":
				l.listed[i].OnExceed = "refuse"
			case "durable":
				l.listed[i].Durable = false
			}
		}
	}
}

func (l *replayLimits) drop(name string) {
	l.listed = slices.DeleteFunc(l.listed, func(limit RuleLimit) bool { return limit.Name == name })
}

// setAll sets what is said of all limits, or the cost.
func (l *replayLimits) setAll(name string, value any) {
	if name == "cost" {
		l.cost, l.costIsSet = value.(int64), true
	}
	for i := range l.listed {
		limit := &l.listed[i]
		limit.set(name, value)
	}
}

// set sets a setting that is said of all limits. A window of the calendar stays a fixed one.
func (l *RuleLimit) set(name string, value any) {
	switch {
	case name == "algorithm" && l.Calendar == nil:
		l.Algorithm = value.(string)
	case name == "burst" && l.Calendar == nil:
		burst := value.(int64)
		l.Burst = &burst
	case name == "durable":
		l.Durable = value.(bool)
	case name == "on_exceed":
		l.OnExceed = value.(string)
	}
}

// kept is the algorithm of a limit that is new: that of the others, if they have one.
func (l *replayLimits) kept() string {
	kept := ""
	for _, limit := range l.listed {
		if limit.Calendar != nil {
			continue
		}
		if kept != "" && kept != limit.Algorithm {
			return ratelimit.SlidingWindow.String()
		}
		kept = limit.Algorithm
	}
	if kept == "" {
		return ratelimit.SlidingWindow.String()
	}
	return kept
}

// setLimit is Database.setLimit.
func (l *replayLimits) setLimit(rule string, c ruleLimit) {
	at := slices.IndexFunc(l.listed, func(limit RuleLimit) bool { return limit.Name == c.name })
	if c.delete {
		l.drop(c.name)
		return
	}
	limit := RuleLimit{Rule: rule, Name: c.name, OnExceed: "refuse", Algorithm: l.kept()}
	if c.calendar != nil {
		limit.Algorithm = ratelimit.FixedWindow.String()
	}
	if at >= 0 {
		old := &l.listed[at]
		limit.Durable, limit.OnExceed = old.Durable, old.OnExceed
		if (old.Calendar == nil) == (c.calendar == nil) {
			limit.Algorithm = old.Algorithm
		}
		if c.calendar == nil {
			limit.Burst = old.Burst
		}
	}
	limit.Events, limit.Calendar, limit.TimeZone = c.events, c.calendar, c.zone
	if c.calendar == nil {
		seconds := c.window.Seconds()
		limit.Seconds = &seconds
	}
	if at >= 0 {
		l.listed[at] = limit
		return
	}
	l.listed = append(l.listed, limit)
}

// setPer sets the amount of per_second … per_month, and makes the limit if there is none.
func (l *replayLimits) setPer(rule, name string, events int64, change *ruleChange) {
	for i := range l.listed {
		if l.listed[i].Name == name {
			l.listed[i].Events = &events
			return
		}
	}
	made := unlimitedPer(name)
	made.events = &events
	l.setLimit(rule, made)
	limit := &l.listed[len(l.listed)-1]
	for i, parameter := range change.names {
		setting, _, _ := strings.Cut(parameter, " ")
		limit.set(setting, change.values[i])
	}
}
