package pgwire

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Parameters are sent as text. An array of any length is built with the same number of calls.

// elementQuoting converts elements with NUL bytes between them to quoted elements with commas between them.
var elementQuoting = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\x00", `","`)

// appendParameters appends the length and the text of each parameter.
func appendParameters(b []byte, args []any) ([]byte, error) {
	for i, arg := range args {
		text := "{}"
		switch v := arg.(type) {
		case nil:
			b = append(b, 0xFF, 0xFF, 0xFF, 0xFF)
			continue
		case []string: // {"a","b"}
			if len(v) > 0 {
				text = strings.Join(v, "\x00")
				if strings.Count(text, "\x00") != len(v)-1 {
					return b, invalidParameter(i, errNUL)
				}
				text = `{"` + elementQuoting.Replace(text) + `"}`
			}
		case []int64: // {1,2}
			if len(v) > 0 {
				list, _ := json.Marshal(v) // [1,2]
				list[0] = '{'
				list[len(list)-1] = '}'
				text = string(list)
			}
		case string:
			text = v
			if strings.Contains(v, "\x00") {
				return b, invalidParameter(i, errNUL)
			}
		case int64:
			text = strconv.FormatInt(v, 10)
		default:
			return b, invalidParameter(i, errParameter)
		}
		n := len(text)
		b = append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
		b = append(b, text...)
	}
	return b, nil
}

// invalidParameter returns the error for the parameter with index i.
func invalidParameter(i int, err error) error {
	return fmt.Errorf("pgwire: parameter $%d %w", i+1, err)
}
