package pgwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// parseTextArray reads a text[] by the rules of Postgres's array_in, strictly: one
// dimension, no spaces between the elements, and everything as the client is
// supposed to write it is accepted, and nothing else.
func parseTextArray(s string) ([]string, error) {
	if s == "{}" {
		return []string{}, nil
	}
	if len(s) < 2 || s[0] != '{' || s[len(s)-1] != '}' {
		return nil, errors.New("no braces")
	}
	s = s[1 : len(s)-1]
	var elements []string
	for {
		if s == "" || s[0] != '"' {
			return nil, fmt.Errorf("no quote before %q", s)
		}
		var element []byte
		i := 1
		for ; i < len(s) && s[i] != '"'; i++ {
			if s[i] == '\\' {
				i++
				if i == len(s) {
					return nil, errors.New("a backslash at the end")
				}
			}
			element = append(element, s[i])
		}
		if i == len(s) {
			return nil, errors.New("no closing quote")
		}
		elements = append(elements, string(element))
		s = s[i+1:]
		if s == "" {
			return elements, nil
		}
		if s[0] != ',' {
			return nil, fmt.Errorf("no comma before %q", s)
		}
		s = s[1:]
	}
}

// appendParameter, textArray and bigintArray are appendParameters for one.
func appendParameter(b []byte, arg any) ([]byte, error) { return appendParameters(b, []any{arg}) }

func textArray(elements []string) (string, bool) {
	text, err := appendParameters(nil, []any{elements})
	if err != nil {
		return "", false
	}
	return string(text[4:]), true
}

func bigintArray(elements []int64) string {
	text, _ := appendParameters(nil, []any{elements})
	return string(text[4:])
}

func TestTextArray(t *testing.T) {
	for _, c := range []struct {
		elements []string
		want     string
	}{
		{nil, `{}`},
		{[]string{}, `{}`},
		{[]string{""}, `{""}`},
		{[]string{"", ""}, `{"",""}`},
		{[]string{"a", "b"}, `{"a","b"}`},
		{[]string{"NULL", "{", "}", ",", " "}, `{"NULL","{","}",","," "}`},
		{[]string{`"`, `\`, `\"`, `"\`}, `{"\"","\\","\\\"","\"\\"}`},
		{[]string{"é\n\t\x01\xff"}, "{\"é\n\t\x01\xff\"}"},
	} {
		got, ok := textArray(c.elements)
		if !ok || got != c.want {
			t.Errorf("%q: %s, %v; want %s", c.elements, got, ok, c.want)
		}
	}
	for _, elements := range [][]string{{"\x00"}, {"a", "b\x00c"}, {"\x00", ""}} {
		if got, ok := textArray(elements); ok {
			t.Errorf("%q: %s", elements, got)
		}
	}
}

func TestTextArrayAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runes := rapid.RuneFrom([]rune(`ab"\,{} é` + "\n\x01"))
		want := rapid.SliceOf(rapid.StringOf(runes)).Draw(t, "elements")
		text, ok := textArray(want)
		got, err := parseTextArray(text)
		if !ok || err != nil || !reflect.DeepEqual(got, append([]string{}, want...)) {
			t.Fatalf("%q: %s means %q, %v", want, text, got, err)
		}
	})
}

func TestBigintArray(t *testing.T) {
	for _, c := range []struct {
		elements []int64
		want     string
	}{
		{nil, "{}"}, {[]int64{}, "{}"}, {[]int64{0}, "{0}"},
		{[]int64{math.MinInt64, -1, math.MaxInt64}, "{-9223372036854775808,-1,9223372036854775807}"},
	} {
		if got := bigintArray(c.elements); got != c.want {
			t.Errorf("%v: %s, want %s", c.elements, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		elements := rapid.SliceOfN(rapid.Int64(), 1, -1).Draw(t, "elements")
		var words []string
		for _, n := range elements {
			words = append(words, strconv.FormatInt(n, 10))
		}
		if got, want := bigintArray(elements), "{"+strings.Join(words, ",")+"}"; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}

func TestParameters(t *testing.T) {
	for _, c := range []struct {
		arg  any
		want string
	}{
		{"text", "text"}, {"", ""}, {int64(-7), "-7"}, {[]string{"a"}, `{"a"}`}, {[]int64{1, 2}, "{1,2}"},
	} {
		got, err := appendParameter([]byte("before"), c.arg)
		want := binary.BigEndian.AppendUint32([]byte("before"), uint32(len(c.want)))
		if err != nil || string(got) != string(want)+c.want {
			t.Errorf("%v: %q, %v", c.arg, got, err)
		}
	}
	if got, err := appendParameter(nil, nil); err != nil || string(got) != "\xff\xff\xff\xff" {
		t.Errorf("nil: %q, %v", got, err)
	}
	for _, arg := range []any{"a\x00", []string{"\x00"}} {
		if got, err := appendParameter(nil, arg); !errors.Is(err, errNUL) {
			t.Errorf("%q: %q, %v", arg, got, err)
		}
	}
	for _, arg := range []any{1, int32(1), 1.5, true, []byte("x"), []any{"x"}, []int{1}} {
		if got, err := appendParameter(nil, arg); !errors.Is(err, errParameter) {
			t.Errorf("%T: %q, %v", arg, got, err)
		}
	}
}

// FuzzArrayText joins any strings into an array, and reads it as Postgres would.
func FuzzArrayText(f *testing.F) {
	f.Add("", "", "")
	f.Add("a", `b"c\d`, "{},NULL")
	f.Add("\x00", "é", "\\")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		want := []string{a, b, c}
		text, ok := textArray(want)
		if clean := !strings.Contains(a+b+c, "\x00"); ok != clean {
			t.Fatalf("%q: taken: %v", want, ok)
		}
		if !ok {
			return
		}
		got, err := parseTextArray(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: %s means %q, %v", want, text, got, err)
		}
	})
}

// FuzzDSN gives Open any string, and any string around a password.
func FuzzDSN(f *testing.F) {
	for _, dsn := range []string{
		"postgres://u:p@h:1,h2:2/d?sslmode=disable&x=y", "host=h port=1 password='a b' user=u\\ v", "postgres://[::1]:5432/d", "postgres://u@/d?host=/tmp",
		"", " ", "'", "postgres://%", "hostaddr=1.2.3.4 require_auth=!md5", "sslmode=verify-full sslrootcert=system",
	} {
		f.Add(dsn)
	}
	const secret = "S3cr3tOfMine"
	f.Fuzz(func(t *testing.T, dsn string) {
		for _, whole := range []string{
			dsn, "postgres://u:" + secret + "@" + dsn, "postgres://u:" + secret + dsn, dsn + "password=" + secret, "password=" + secret + dsn,
			"password='" + secret + dsn, dsn + "?password=" + secret,
		} {
			p, err := Open(whole, Options{LookupEnv: noEnv})
			if err == nil {
				for _, target := range p.cfg.targets {
					if target.host == "" || target.port == "" {
						t.Errorf("%q: %+v", whole, target)
					}
				}
				p.Close()
				continue
			}
			if err.Error() == "" || !strings.Contains(dsn, secret[:4]) && strings.Contains(err.Error(), secret) {
				t.Errorf("%q: %v", whole, err)
			}
		}
	})
}
