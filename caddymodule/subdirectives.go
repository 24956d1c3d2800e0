package caddymodule

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// block reads a block of subdirectives in a Caddyfile. Its errors have the subdirective, its value, the valid
// values, and the line.
type block struct {
	d     *caddyfile.Dispenser
	title string // the start of errors about a zone, or ""
	start caddyfile.Token
	seen  map[string]caddyfile.Token // the subdirectives that were read

	blocks map[string]*block // the blocks of subdirectives, by name
}

// ReadDirective reads a directive without arguments. Each subdirective is a setting of the table, for the
// field of target with the same JSON name.
func ReadDirective(d *caddyfile.Dispenser, target any, table []settings.Setting) error {
	d.Next() // the directive's name
	b := newBlock(d)
	if args := d.RemainingArgs(); len(args) > 0 {
		return b.invalid(b.start.Text, strings.Join(args, " "), "a block, or nothing")
	}
	return b.readAll(target, table)
}

// newBlock returns a block for a dispenser that is at the name of the directive.
func newBlock(d *caddyfile.Dispenser) *block {
	return &block{d: d, start: d.Token(), seen: map[string]caddyfile.Token{}, blocks: map[string]*block{}}
}

// readAll reads all subdirectives of the block; see read.
func (b *block) readAll(target any, table []settings.Setting) (err error) {
	for nesting := b.d.Nesting(); err == nil && b.d.NextBlock(nesting); {
		err = b.read(target, table)
	}
	return err
}

// read reads the subdirective at the dispenser's position into the field of target with the same JSON name.
// others lists the names of valid subdirectives that are in no table.
func (b *block) read(target any, table []settings.Setting, others ...string) error {
	token := b.d.Token()
	name := token.Text
	if first, ok := b.seen[name]; ok {
		return errorAt(token, fmt.Errorf("%s%s: given twice: must be given once, and is on line %d already",
			b.title, name, first.Line))
	}
	b.seen[name] = token
	names := others
	for i := range table {
		if table[i].Name == name {
			return b.set(field(target, name), &table[i], b.d.RemainingArgs())
		}
		names = append(names, table[i].Name)
	}
	slices.Sort(names)
	err := option.Invalid("subdirective", name, "one of "+strings.Join(names, ", "))
	return errorAt(token, fmt.Errorf("%s%w", b.title, err))
}

// set sets the field of a setting to its arguments. The meaning of the arguments is checked together with the
// whole block.
func (b *block) set(field reflect.Value, s *settings.Setting, args []string) error {
	text := strings.Join(args, " ")
	switch s.Form {
	case settings.Block:
		return b.setBlock(field, s, text)
	case settings.Switch:
		if len(args) == 0 {
			text = "on"
		}
		if text != "on" && text != "off" {
			return b.invalid(s.Name, text, "on or off, or nothing, which is on")
		}
	default:
		if text == "" && s.Want != "" || len(args) > 1 && s.Form == settings.OneWord {
			return b.invalid(s.Name, text, s.Want)
		}
	}
	field.SetString(text)
	return nil
}

// setBlock reads the block of a subdirective into a new struct and validates it.
func (b *block) setBlock(field reflect.Value, s *settings.Setting, text string) error {
	if text != "" {
		return b.invalid(s.Name, text, "a block, or nothing")
	}
	field.Set(reflect.New(field.Type().Elem()))
	inner := newBlock(b.d)
	b.blocks[s.Name] = inner
	inner.title = b.title + s.Name + ": "
	if err := inner.readAll(field.Interface(), s.Settings); err != nil {
		return err
	}
	return inner.locate(settings.Read(s.Settings, Values(field.Interface()), new(settings.Settings)))
}

// invalid returns an error about a value. "" is a missing value.
func (b *block) invalid(field, value, want string) error {
	return b.locate(option.Invalid(field, value, want))
}

// locate adds a line to an error: the line of the subdirective that the error names, or else the first line
// of the block.
func (b *block) locate(err error) error {
	if err == nil {
		return nil
	}
	token := b.start
	var named *ratelimit.FieldError
	if errors.As(err, &named) {
		if seen, ok := b.seen[named.Field]; ok {
			token = seen
		}
	}
	return errorAt(token, fmt.Errorf("%s%w", b.title, err))
}

// errorAt adds a token's file and line to an error.
func errorAt(token caddyfile.Token, err error) error {
	d := caddyfile.NewDispenser([]caddyfile.Token{token})
	d.Next()
	return d.WrapErr(err)
}
