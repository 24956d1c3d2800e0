package usage_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// readPrompt reads a request.
func readPrompt(path string, types []string, body []byte) (usage.Prompt, error) {
	a := &usage.Request{Path: path, ContentTypes: types, Body: body}
	usage.ReadPrompts([]*usage.Request{a})
	return a.Prompt, a.Err
}

// prompt returns the text of the prompt in a request. The body must be as before.
func prompt(t testing.TB, path, body string) string {
	t.Helper()
	text := []byte(body)
	decoded, err := url.PathUnescape(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := readPrompt(decoded, nil, text)
	if string(text) != body {
		t.Errorf("the body %.100q has become %.100q", body, text)
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(p.Model, " ", p.Output, " ", p.Background)
}

// Many members, and long values, are read by compiled code.
func TestLongPromptsAreRead(t *testing.T) {
	many := strings.Repeat(`"x":1,`, 100000)
	check.Equal(t, "many members", prompt(t, "/", `{`+many+`"max_tokens":5}`), " 5 false")
	long := strings.Repeat(`\"max_tokens\"`, 100000)
	body := `{"max_tokens":5,"messages":["` + long + `",{"max_tokens":9}]}`
	check.Equal(t, "long", prompt(t, "/", body), " 5 false")
	check.Equal(t, "a long name", prompt(t, "/", `{"model":"`+strings.Repeat("m", 257)+`"}`), " 0 false")
	check.Equal(t, "a path with a long name", prompt(t, "/model/"+strings.Repeat("m", 257)+"/invoke", "{}"),
		" 0 false")
	check.Equal(t, "many members with two of a name",
		prompt(t, "/", `{"n":1,"N":1`+strings.Repeat(`,"x":1`, 2000)+`}`), "ambiguous body")
}

// member is a member of an object.
type member struct {
	name  string
	value json.RawMessage
}

// membersOf returns the members of an object in their order, or nil if a text is no object.
func membersOf(text []byte) []member {
	if !json.Valid(text) {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return nil
	}
	all := []member{}
	for d.More() {
		token, _ := d.Token()
		m := member{name: token.(string)}
		if d.Decode(&m.value) != nil {
			panic("valid JSON has an error")
		}
		all = append(all, m)
	}
	return all
}

// only returns the value of the only member with a name. several reports that there are several.
func only(members []member, name string, several *bool) json.RawMessage {
	var found json.RawMessage
	for _, m := range members {
		if strings.EqualFold(m.name, name) {
			*several = *several || found != nil
			found = m.value
		}
	}
	return found
}

// number returns the whole number of 1 or more that a text is, or 0.
func number(text json.RawMessage) float64 {
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || n < 1 || n != math.Trunc(n) {
		return 0
	}
	return n
}

// expected returns what prompt should return for a body that begins as an object.
func expected(body []byte) string {
	top := membersOf(bytes.TrimPrefix(body, []byte("\ufeff")))
	ambiguous := top == nil
	output := 0.0
	for _, name := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens"} {
		output = max(output, number(only(top, name, &ambiguous)))
	}
	for _, names := range [][2]string{{"options", "num_predict"}, {"generationConfig", "maxOutputTokens"}} {
		inner := membersOf(only(top, names[0], &ambiguous))
		output = max(output, number(only(inner, names[1], &ambiguous)))
	}
	if n := number(only(top, "n", &ambiguous)); n > 0 {
		output *= n
	}
	var model string
	_ = json.Unmarshal(only(top, "model", &ambiguous), &model)
	if len(model) > 256 {
		model = ""
	}
	background := string(only(top, "background", &ambiguous)) == "true"
	if ambiguous {
		return "ambiguous body"
	}
	return fmt.Sprint(model, " ", int64(min(output, 1<<53)), " ", background)
}

// drawObject draws an object of names that are read, in several forms, and of other names.
func drawObject(rt *rapid.T, depth int) string {
	kinds := []string{`1`, `30`, `2.0`, `1.5`, `-4`, `1e17`, `null`, `true`, `"n"`, `"\"model\""`, `[]`,
		`["n",{"max_tokens":1}]`}
	var members []string
	for range rapid.IntRange(0, 5).Draw(rt, "members") {
		name := rapid.SampledFrom([]string{"model", "background", "n", "max_tokens", "max_completion_tokens",
			"max_output_tokens", "options", "generationConfig", "num_predict", "maxOutputTokens",
			"x"}).Draw(rt, "name")
		switch rapid.IntRange(0, 9).Draw(rt, "form") {
		case 0:
			name = strings.ToUpper(name)
		case 1:
			name = strings.ReplaceAll(name, "s", "\u017f")
		case 2:
			name = fmt.Sprintf(`\u%04x`, name[0]) + name[1:]
		}
		value := rapid.SampledFrom(kinds).Draw(rt, "value")
		if depth > 0 && rapid.Bool().Draw(rt, "object") {
			value = drawObject(rt, depth-1)
		}
		space := rapid.SampledFrom([]string{"", " ", "\n\t"}).Draw(rt, "space")
		members = append(members, space+`"`+name+`"`+space+":"+space+value)
	}
	return "{" + strings.Join(members, ",") + "}"
}

func TestPromptsAreReadAsMemberByMember(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		body := drawObject(rt, 2)
		if got, want := prompt(t, "/", body), expected([]byte(body)); got != want {
			rt.Errorf("got %q, want %q: %s", got, want, body)
		}
	})
}

// FuzzPrompts compares prompts with what encoding/json reads member by member.
func FuzzPrompts(f *testing.F) {
	for _, body := range []string{`{"model":"m","max_tokens":7,"n":2}`, `{"options":{"num_predict":8}}`,
		`{"n":1,"N":2}`, `{"max_t\u006fkens":5,"x":{"max_tokens":6}}`, "\ufeff{\"background\" : true}",
		`{"generationConfig":{"maxOutputTokens":1e3,"x":"\"n\""},"x":["n","model"]}`, `{"a":1}x`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got := prompt(t, "/", string(body))
		if start := bytes.TrimLeft(bytes.TrimPrefix(body, []byte("\ufeff")), " \t\r\n"); len(start) == 0 ||
			start[0] != '{' {
			if got != "ambiguous body" && got != " 0 false" {
				t.Errorf("no object: got %q: %q", got, body)
			}
			return
		}
		if want := expected(body); got != want {
			t.Errorf("got %q, want %q: %q", got, want, body)
		}
	})
}
