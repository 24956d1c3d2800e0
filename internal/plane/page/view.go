package page

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// index is the page. It shows answers of the API, by the names that they have as JSON.
var index = template.Must(template.New("index.html").Funcs(template.FuncMap{
	"clock": func(t any, now time.Time) string { return timeText(t, now, time.TimeOnly) },
	"until": untilText,
	"count": func(n any) string { return numberText(n, func(f float64) string { return number(int64(f)) }) },
	"counted": func(n any) string {
		return numberText(n, func(f float64) string { return counted(int64(f), "request", "requests") })
	},
	"percent": func(n any) string {
		return numberText(n, func(f float64) string { return fmt.Sprint(math.Floor(f*10)/10, " %") })
	},
	"seconds": func(n any) string { return span(time.Duration(math.Ceil(numberOf(n))) * time.Second) },
	"share":   func(n, most any) float64 { return min(100*numberOf(n)/max(numberOf(most), 1), 100) },
	"full":    func(percent any) bool { return numberOf(percent) >= 100 },
	"several": func(n any) string { return map[bool]string{true: number(int64(numberOf(n)))}[numberOf(n) > 1] },
	"lists":   func() []list { return lists },
	"kinds":   func() [][2]string { return kinds },
	"mode":    func(headline string) string { mode, _, _ := strings.Cut(headline, ":"); return mode },
	"next": func(text, request string) string {
		return strings.Replace(text, "The next request", "Now, "+request, 1)
	},
	"ban":     banText,
	"visible": func(name any) string { return blanks.Replace(fmt.Sprint(name)) },
	"part":    partOf,
}).ParseFS(static, "static/index.html"))

// kinds are what a reader can say that a name is.
var kinds = [][2]string{
	{"", "guessed"}, {kindUser, "a user"}, {kindKey, "an API key"}, {kindKeyID, "the number of an API key"},
	{kindAddress, "an address"}, {kindCounter, "a key that a limit counts"},
}

// Write writes the page. The answers are "session", "state", and, if they were asked for, "top" since a time ("since"),
// and "why" for a "request", or the "error" of it. "asked" has the fields of the question.
func Write(w io.Writer, answers map[string]any) error {
	text := marshal(answers)
	shown, d := map[string]any{"since": lastHour}, drawing{}
	numbers := json.NewDecoder(bytes.NewReader(text))
	numbers.UseNumber()
	if err := errors.Join(numbers.Decode(&shown), json.Unmarshal(text, &d)); err != nil {
		return err
	}
	shown["now"], shown["chart"], shown["periods"] = d.State.Banner.At, d.chart(), d.periods()
	var page bytes.Buffer
	if err := index.Execute(&page, shown); err != nil {
		return err
	}
	_, err := w.Write(invisible.ReplaceAllFunc(page.Bytes(), func(c []byte) []byte {
		return fmt.Appendf(nil, `\u%04x`, []rune(string(c))[0])
	}))
	return err
}

// invisible are characters that cannot be seen, or change the order of the letters around them.
var invisible = regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f-\x{a0}\x{ad}\x{61c}\x{115f}\x{1160}\x{180e}\x{200b}-\x{200f}` +
	`\x{2028}-\x{202f}\x{2060}-\x{206f}\x{3164}\x{fe00}-\x{fe0f}\x{feff}\x{fff0}-\x{ffff}]`)

// serveIndex serves the page. A POST asks why somebody was refused.
func (s *Server) serveIndex(w http.ResponseWriter, r *http.Request) {
	var asked whyBody
	var failed error
	answers := map[string]any{"session": s.session()}
	if r.Method == http.MethodPost {
		if failed = readWhole(w, r); failed == nil {
			failed = readForm(r, &asked)
		}
		if len(r.PostForm["who"]) > 1 { // a name in a list: its script asks about now, too
			asked.At = ""
		}
		var answer any
		if failed == nil {
			answer, failed = why(r.Context(), s, &asked)
		}
		if failed == nil {
			answers["why"] = answer
		}
	} else if f := (periodFields{Since: r.URL.Query().Get("since")}); f.Since != "" && f.Since != lastHour {
		answers["since"] = f.Since
		if answers["top"], failed = top(r.Context(), s, &f); failed != nil {
			answers["top"] = map[string]any{"note": failureOf(failed).Error()}
		}
		failed = nil
	}
	if failed != nil {
		answers["error"] = oneLine(failureOf(failed).Error())
	}
	answers["request"] = cmp.Or(asked.Method, "GET") + " " + asked.Host + cmp.Or(asked.Path, "/")
	if apiKeys.MatchString(asked.Who) { // the page shows no API key
		asked.Who = ""
	}
	answers["asked"] = &asked
	answers["state"] = json.RawMessage(s.state(r.Context()))
	var text bytes.Buffer
	if err := Write(&text, answers); err != nil {
		failureOf(err).write(w)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text.Bytes()) // an error means that the client has closed the connection
}

// readForm reads the form of a question into its body. Of several values of a field the last one counts: that of a button
// in a list, which comes after the field.
func readForm(r *http.Request, into any) error {
	if err := r.ParseForm(); err != nil {
		return &failure{http.StatusBadRequest, "", "the form cannot be read: " + err.Error()}
	}
	fields := map[string]string{}
	for name, all := range r.PostForm {
		fields[name] = strings.TrimSpace(all[len(all)-1])
		if strings.Contains(fields[name], "\x00") {
			return &failure{http.StatusBadRequest, name, name + " has a NUL (%00), which is in no name and no key"}
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return readJSON(bytes.NewReader(text), into)
}

// parseTime reads a time of an answer; the zero time: there is none.
func parseTime(value any) time.Time {
	text, _ := value.(string)
	t, _ := time.Parse(time.RFC3339, text) // answers have no other form
	return t.UTC()
}

// timeText is a time of an answer, with its day if that is not today.
func timeText(value any, now time.Time, layout string) string {
	t := parseTime(value)
	switch {
	case t.IsZero():
		return dash
	case t.Format(time.DateOnly) != now.UTC().Format(time.DateOnly):
		layout = time.DateOnly + " " + layout
	}
	return t.Format(layout)
}

func untilText(value any, now time.Time) string {
	left := parseTime(value).Sub(now)
	if left <= 0 {
		return dash
	}
	round := time.Minute
	if left < 2*time.Minute {
		left, round = max(left, time.Second), time.Second
	}
	return timeText(value, now, "15:04") + " (in " + span(left.Round(round)) + ")"
}

// numberOf is a number of an answer; 0: there is none.
func numberOf(value any) float64 {
	n, _ := strconv.ParseFloat(fmt.Sprint(value), 64)
	return n
}

func numberText(value any, text func(float64) string) string {
	if value == nil {
		return dash
	}
	return text(numberOf(value))
}

// partOf is a part of an answer; nil: it has none.
func partOf(value any, names ...string) any {
	for _, name := range names {
		fields, _ := value.(map[string]any)
		value = fields[name]
	}
	return value
}

// banText is a ban in force.
func banText(ban map[string]any, now time.Time) string {
	ends, because := "for ever", ""
	if ban["until"] != nil {
		ends = "until " + untilText(ban["until"], now)
	}
	if ban["reason"] != nil {
		because = fmt.Sprint(": ", ban["reason"])
	}
	return fmt.Sprintf("%s %s, %s, by %s%s", ban["kind"], ban["banned"], ends, ban["banned_by"], because)
}

// blanks are characters of a name that HTML does not show.
var blanks = strings.NewReplacer("\n", `\u000a`, "\t", `\u0009`)
