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

// prompt returns the text of the prompt in a request. The body must be as before.
func prompt(t testing.TB, path, body string) string {
	t.Helper()
	text := []byte(body)
	decoded, err := url.PathUnescape(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := usage.ReadPrompt(decoded, nil, text)
	if string(text) != body {
		t.Errorf("the body %.100q has become %.100q", body, text)
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(p.Model, " ", p.Output, " ", p.Background)
}

func TestPromptNamesItsOutput(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","max_tokens":7}`:                                "m 7 false",
		`{"max_completion_tokens":7,"max_tokens":9}`:                  " 9 false",
		`{"max_output_tokens":7,"n":3}`:                               " 21 false",
		`{"max_tokens":1e3,"n":2.0}`:                                  " 2000 false",
		`{"max_tokens":9007199254740991,"n":2}`:                       " 9007199254740992 false",
		`{"max_tokens":1e400}`:                                        " 9007199254740992 false",
		`{"max_tokens":1,"n":1e99}`:                                   " 9007199254740992 false",
		`{"max_tokens":0}`:                                            " 0 false",
		`{"max_tokens":-5,"n":-1}`:                                    " 0 false",
		`{"max_tokens":1.5}`:                                          " 0 false",
		`{"max_tokens":"7","n":[2]}`:                                  " 0 false",
		`{"max_tokens":null,"n":null,"model":null}`:                   " 0 false",
		`{"max_tokens":5,"n":0}`:                                      " 5 false",
		`{"n":5}`:                                                     " 0 false",
		`{"generationConfig":{"maxOutputTokens":8}}`:                  " 8 false",
		`{"options":{"num_predict":8},"max_tokens":4}`:                " 8 false",
		`{"maxOutputTokens":8,"num_predict":9}`:                       " 0 false",
		`{"options":{"max_tokens":8},"options_":{"num_predict":9}}`:   " 0 false",
		`{"options":[{"num_predict":8}],"generationConfig":"x"}`:      " 0 false",
		`{"messages":[{"model":"x","max_tokens":9}],"model":"m"}`:     "m 0 false",
		`{"model":"m","tools":[{"n":1,"N":2,"model":{"model":"x"}}]}`: "m 0 false",
		`{"text":"say \"model\"","model":"m"}`:                        "m 0 false",
		`{"m\u006fdel":"l\u0061rge","M\u0041X_TOKENS":5}`:             "large 5 false",
		`{"Model":"m","MAX_TO` + "\u212a" + `ENS":5,"option` + "\u017f" + `":{"num_predict":6}}`: "m 6 false",
		`{"model":["m"]}`: " 0 false",
		`{"model":"` + strings.Repeat("m", 257) + `"}`: " 0 false",
		`{"background":true}`:                          " 0 true",
		`{"background":"transparent"}`:                 " 0 false",
		"\ufeff\r\n\t {\"max_tokens\":7} \n":           " 7 false",
		`[{"max_tokens":7}]`:                           " 0 false",
		`"max_tokens"`:                                 " 0 false",
		`--boundary`:                                   " 0 false",
		"\x1f\x8b\x08":                                 " 0 false",
		" \n":                                          " 0 false",
		"":                                             " 0 false",
	} {
		check.Equal(t, body, prompt(t, "/v1/chat/completions", body), want)
	}
}

// Servers differ in which of two members they read, and in what they take for JSON.
func TestAmbiguousPromptsAreRefused(t *testing.T) {
	for _, body := range []string{
		`{"max_tokens":1,"max_tokens":9}`,
		`{"max_tokens":1,"Max_Tokens":9}`,
		`{"max_tokens":1,"max\u005ftokens":9}`,
		`{"MODEL":"a","Model":"b"}`,
		`{"background":false,"bac` + "\u212a" + `ground":true}`,
		`{"n":1,"x":{"n":1},"N":9}`,
		`{"options":{},"options":{"num_predict":9}}`,
		`{"options":{"num_predict":1,"NUM_PREDICT":9}}`,
		`{"generationConfig":{"maxOutputTokens":1,"maxoutputtokens":9},"GenerationConfig":null}`,
		`{"generationConfig":{"maxOutputTokens":1,"maxOutputTokens":9}}`,
		`{"max_tokens":9,"x":NaN}`,
		`{"max_tokens":9,}`,
		`{"max_tokens":9`,
		`{"max_tokens":9} {"max_tokens":1}`,
		`{max_tokens:9}`,
		"\ufeff\ufeff{}",
		"\xff\xfe{\x00\"\x00n\x00\"\x00:\x002\x00}\x00",
		"\xfe\xff\x00{\x00\"\x00n\x00\"\x00:\x002\x00}",
		"{\x00\"\x00n\x00\"\x00:\x002\x00}\x00",
		"\x00\x00\x00{\x00\x00\x00}",
		`{"n":1,"N":1` + strings.Repeat(`,"x":1`, 2000) + `}`,
	} {
		check.Equal(t, body, prompt(t, "/", body), "ambiguous body")
	}
}

func TestPathNamesTheModel(t *testing.T) {
	for path, want := range map[string]string{
		"/v1beta/models/gemini-2.0-flash:streamGenerateContent":                  "gemini-2.0-flash",
		"/v1beta/models/gemini%2D2%3AgenerateContent":                            "gemini-2",
		"/v1/projects/p/locations/l/publishers/google/models/gem@001:rawPredict": "gem@001",
		"/openai/deployments/my%20model/chat/completions":                        "my model",
		"/model/anthropic.claude-v2:1/invoke-with-response-stream":               "anthropic.claude-v2:1",
		"/model/arn%3Aaws%3Abedrock%3Aeu%3Ap%2FX/converse":                       "arn:aws:bedrock:eu:p/X",
		"/model/arn:aws:bedrock:eu:p/x/y/invoke":                                 "arn:aws:bedrock:eu:p/x/y",
		"/model/arn%3Aaws%3Abedrock%3Aeu%3Ap%5Cx/converse":                       "arn:aws:bedrock:eu:p/x",
		"/v1beta/models/gemini-2%0A:generateContent":                             "gemini-2\n",
		"/model/a%252Fb/invoke":                                                  "a%2Fb",
		"/V1beta%2FModels%2FGemini-2:generateContent":                            "Gemini-2",
		"/openai/%2E/Deployments//%20GPT-4o%09/chat/completions":                 " GPT-4o\t",
		"/model/" + strings.Repeat("m", 257) + "/invoke":                         "",
		"/model/%20/invoke":                                                      " ",
		"/proxy/model/m/converse-stream":                                         "m",
		"/v1/models/x":                                                           "body",
		"/model/new":                                                             "body",
		"/deployments/x/chat":                                                    "body",
	} {
		check.Equal(t, path, prompt(t, path, `{"model":"body"}`), want+" 0 false")
	}
}

// Many members, and long values, are read by compiled code.
func TestLongPromptsAreRead(t *testing.T) {
	many := strings.Repeat(`"x":1,`, 100000)
	check.Equal(t, "many members", prompt(t, "/", `{`+many+`"max_tokens":5}`), " 5 false")
	long := strings.Repeat(`\"max_tokens\"`, 100000)
	body := `{"max_tokens":5,"messages":["` + long + `",{"max_tokens":9}]}`
	check.Equal(t, "long", prompt(t, "/", body), " 5 false")
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
