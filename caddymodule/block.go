package caddymodule

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// block is a block of subdirectives in a Caddyfile while it is read. Its errors
// name the subdirective, its value and what it should be, and the line.
type block struct {
	d     *caddyfile.Dispenser
	title string // of a zone, to begin errors with; or ""
	start caddyfile.Token
	name  string                     // of the subdirective being read
	seen  map[string]caddyfile.Token // where each was
}

// newBlock begins where the dispenser is: at the directive's name.
func newBlock(d *caddyfile.Dispenser) *block {
	return &block{d: d, start: d.Token(), seen: map[string]caddyfile.Token{}}
}

// next goes to the subdirective on which the dispenser is, and returns its
// arguments.
func (b *block) next() (args []string, err error) {
	token := b.d.Token()
	b.name = token.Text
	if before, ok := b.seen[b.name]; ok {
		return nil, errorAt(token, fmt.Errorf("%s%s: given twice: must be given once, and is on line %d already", b.title, b.name, before.Line))
	}
	b.seen[b.name] = token
	return b.d.RemainingArgs(), nil
}

// one returns the only argument.
func (b *block) one(args []string, want string) (string, error) {
	if len(args) != 1 || args[0] == "" {
		return "", b.wrong(b.name, strings.Join(args, " "), want)
	}
	return args[0], nil
}

// dsn returns an address. As key=value pairs it is several arguments.
func (b *block) dsn(args []string) (string, error) {
	dsn := strings.Join(args, " ")
	if dsn == "" {
		return "", b.wrong(b.name, "", wantDSN)
	}
	return dsn, nil
}

// flag returns what on, off or nothing (which is on) says.
func (b *block) flag(args []string) (bool, error) {
	text := strings.Join(args, " ")
	switch {
	case len(args) == 0 || text == "on":
		return true, nil
	case text == "off":
		return false, nil
	}
	return false, b.wrong(b.name, text, "on or off, or nothing, which is on")
}

// number returns a whole number from 1 to most.
func (b *block) number(args []string, most int, want string) (int, error) {
	text, err := b.one(args, want)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, b.wrong(b.name, text, want)
	}
	return n, nil
}

// wrong is the error of a value; "" is one that is missing.
func (b *block) wrong(field, value, want string) error {
	return b.locate(&ratelimit.FieldError{Field: field, Value: value, Want: want})
}

// unknown is the error of a subdirective that does not exist; names are those
// that do.
func (b *block) unknown(names ...string) error {
	slices.Sort(names)
	err := &ratelimit.FieldError{Field: "subdirective", Value: b.name, Want: "one of " + strings.Join(names, ", ")}
	return errorAt(b.seen[b.name], fmt.Errorf("%s%w", b.title, err))
}

// locate adds to an error where in the Caddyfile it lies: at the subdirective
// that it names, or else at the beginning of the block.
func (b *block) locate(err error) error {
	if err == nil {
		return nil
	}
	token := b.start
	if at, ok := b.seen[fieldOf(err)]; ok {
		token = at
	}
	return errorAt(token, fmt.Errorf("%s%w", b.title, err))
}

// errorAt adds a token's file and line to an error, as Caddy does.
func errorAt(token caddyfile.Token, err error) error {
	d := caddyfile.NewDispenser([]caddyfile.Token{token})
	d.Next()
	return d.WrapErr(err)
}
