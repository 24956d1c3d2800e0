package option_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// HasPassword finds a password that is not empty in a URL and in key=value pairs, in any case, with quotes
// and with spaces around the equals sign.
func TestPasswordInDSNIsFound(t *testing.T) {
	golden.ReplayLines(t, "testdata/passwords.txt", func(t *testing.T, _, text string) string {
		dsn, err := strconv.Unquote(text)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(option.HasPassword(dsn))
	})
}
