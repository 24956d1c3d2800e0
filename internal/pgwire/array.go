package pgwire

import (
	"encoding/binary"
	"encoding/json"
	"strconv"
	"strings"
)

// Parameters travel as text. An array is built in a handful of calls whatever
// its length, since each step of a loop costs an interpreter a microsecond.

// appendParameter appends a parameter's length and text.
func appendParameter(b []byte, arg any) ([]byte, error) {
	text := ""
	switch v := arg.(type) {
	case []string:
		var ok bool
		if text, ok = textArray(v); !ok {
			return b, errNUL
		}
	case []int64:
		text = bigintArray(v)
	case string:
		text = v
		if strings.Contains(v, "\x00") {
			return b, errNUL
		}
	case int64:
		text = strconv.FormatInt(v, 10)
	case nil:
		return append(b, 0xFF, 0xFF, 0xFF, 0xFF), nil
	default:
		return b, errParameter
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...), nil
}

// elementQuoting turns elements with NUL bytes between them into quoted ones
// with commas between them.
var elementQuoting = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\x00", `","`)

// textArray is a text[] as Postgres reads it: {"a","b"}. It returns false if an
// element holds a NUL byte.
func textArray(elements []string) (string, bool) {
	if len(elements) == 0 {
		return "{}", true
	}
	text := strings.Join(elements, "\x00")
	if strings.Count(text, "\x00") != len(elements)-1 {
		return "", false
	}
	return `{"` + elementQuoting.Replace(text) + `"}`, true
}

// bigintArray is a bigint[] as Postgres reads it: {1,2}.
func bigintArray(elements []int64) string {
	text, err := json.Marshal(elements) // [1,2]
	if err != nil || len(elements) == 0 {
		return "{}"
	}
	text[0] = '{'
	text[len(text)-1] = '}'
	return string(text)
}
