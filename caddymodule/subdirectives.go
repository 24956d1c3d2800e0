package caddymodule

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// block reads a block of subdirectives in a Caddyfile. Its errors have the subdirective,
// its value, what it must be, and the line.
type block struct {
	d     *caddyfile.Dispenser
	title string // the beginning of errors about a zone; or ""
	start caddyfile.Token
	name  string                     // the subdirective that is being read
	seen  map[string]caddyfile.Token // the subdirectives that were read
}

// newBlock returns a block for a dispenser that is at the name of the directive.
func newBlock(d *caddyfile.Dispenser) *block {
	return &block{d: d, start: d.Token(), seen: map[string]caddyfile.Token{}}
}

// next reads the subdirective at which the dispenser is, and returns its arguments.
func (b *block) next() (args []string, err error) {
	token := b.d.Token()
	b.name = token.Text
	if before, ok := b.seen[b.name]; ok {
		return nil, errorAt(token, fmt.Errorf("%s%s: given twice: must be given once, and is on line %d already", b.title, b.name, before.Line))
	}
	b.seen[b.name] = token
	return b.d.RemainingArgs(), nil
}

// one returns the argument of a subdirective that has exactly one.
func (b *block) one(args []string, want string) (string, error) {
	if len(args) != 1 || args[0] == "" {
		return "", b.wrong(b.name, strings.Join(args, " "), want)
	}
	return args[0], nil
}

// dsn returns a DSN, which is several arguments if it consists of key=value pairs.
func (b *block) dsn(args []string) (string, error) {
	dsn := strings.Join(args, " ")
	if dsn == "" {
		return "", b.wrong(b.name, "", edge.WantDSN)
	}
	return dsn, nil
}

// flag returns the value of on, off or no argument, which is on.
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

// number returns a whole number.
func (b *block) number(args []string, bound edge.Bound) (int, error) {
	text, err := b.one(args, bound.Want())
	if err != nil {
		return 0, err
	}
	n, err := bound.Parse(text)
	return n, b.locate(err)
}

// wrong returns an error about a value. "" is a value that is missing.
func (b *block) wrong(field, value, want string) error {
	return b.locate(&ratelimit.FieldError{Field: field, Value: value, Want: want})
}

// unknown returns an error about a subdirective that does not exist. names are the
// subdirectives that do.
func (b *block) unknown(names ...string) error {
	slices.Sort(names)
	err := &ratelimit.FieldError{Field: "subdirective", Value: b.name, Want: "one of " + strings.Join(names, ", ")}
	return errorAt(b.seen[b.name], fmt.Errorf("%s%w", b.title, err))
}

// locate adds a line to an error: that of the subdirective that the error names, or else
// that of the beginning of the block.
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

// errorAt adds a token's file and line to an error.
func errorAt(token caddyfile.Token, err error) error {
	d := caddyfile.NewDispenser([]caddyfile.Token{token})
	d.Next()
	return d.WrapErr(err)
}

// fieldOf is the name of the field that an error is about, or "".
func fieldOf(err error) string {
	var field *ratelimit.FieldError
	if errors.As(err, &field) {
		return field.Field
	}
	return ""
}
