package pgwire

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Parameters are sent as text. The text of an array is built with the same few calls for any length, because
// Yaegi takes long for each call.

// elementQuoting converts elements with NUL bytes between them to quoted elements with commas between them.
var elementQuoting = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\x00", `","`)

// appendParameters appends the length and the text of each parameter.
func appendParameters(b []byte, args []any) []byte {
	for _, arg := range args {
		text := "{}"
		null := false
		switch v := arg.(type) {
		case nil:
			null = true
		case []string: // {"a","b"}
			null = v == nil
			if len(v) > 0 {
				text = strings.Join(v, "\x00")
				if strings.Count(text, "\x00") == len(v)-1 {
					text = `{"` + elementQuoting.Replace(text) + `"}`
				} // else the server refuses the NUL bytes
			}
		case []int64: // {1,2}
			null = v == nil
			if len(v) > 0 {
				list, _ := json.Marshal(v) // [1,2]
				list[0] = '{'
				list[len(list)-1] = '}'
				text = string(list)
			}
		case string:
			text = v
		case int64:
			text = strconv.FormatInt(v, 10)
		default:
			text = fmt.Sprint(v)
		}
		if null {
			b = append(b, 0xFF, 0xFF, 0xFF, 0xFF)
			continue
		}
		n := len(text)
		b = append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
		b = append(b, text...)
	}
	return b
}
