package traefikplugin

import (
	"fmt"
	"log"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

// write writes a line to Traefik's log. middleware is the name of a middleware, or "". A plugin can select
// only two levels: log.Writer has the level ERROR, which is always visible, and the standard output has the
// level DEBUG. Traefik's log does not include os.Stderr.
func write(middleware string, line host.Line) {
	text := "pg_ratelimit: "
	if middleware != "" {
		text += "middleware " + middleware
		if line.Prefix != "" {
			text += ", prefix " + line.Prefix
		}
		text += ": "
	}
	if line.Setting != "" {
		text += camelCase(line.Setting) + " "
	}
	text += line.Text
	if line.Err != nil {
		text += ": " + line.Err.Error()
	}
	if line.Lasted > 0 {
		text += fmt.Sprintf(", after %s: %d requests had no decision", line.Lasted.String(), line.Undecided)
	}
	if line.Dropped > 0 {
		text += fmt.Sprintf(" (and %d more failures since the last line)", line.Dropped)
	}
	if line.Level == host.Info {
		fmt.Println(text)
		return
	}
	fmt.Fprintln(log.Writer(), text)
}

// logPanic recovers a panic and logs it, because a panic in a goroutine of the plugin would end Traefik. Use
// it with defer.
func logPanic() {
	if p := recover(); p != nil {
		write("", host.Line{Level: host.Error, Text: "a panic", Err: fmt.Errorf("%v", p)})
	}
}
