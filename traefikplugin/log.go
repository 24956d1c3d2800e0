package traefikplugin

import (
	"fmt"
	"log"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

// write writes a line about a middleware, or "", to Traefik's log. What goes to log.Writer has the level
// ERROR there, so that everybody sees it, and the standard output has the level DEBUG. Nothing else can be
// chosen. os.Stderr is not that log.
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
		text += ", after " + line.Lasted.String() + ": " + strconv.FormatInt(line.Undecided, 10) +
			" requests had no decision"
	}
	if line.Dropped > 0 {
		text += " (and " + strconv.FormatInt(line.Dropped, 10) + " more failures since the last line)"
	}
	if line.Level == host.Info {
		fmt.Println(text)
		return
	}
	fmt.Fprintln(log.Writer(), text)
}

// recovered ends a panic, which would end Traefik if it left a goroutine of the plugin. It
// must be deferred.
func recovered() {
	if p := recover(); p != nil {
		write("", host.Line{Level: host.Error, Text: "a panic", Err: fmt.Errorf("%v", p)})
	}
}
