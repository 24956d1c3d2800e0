package imports

import (
	"go/token"
	"go/types"
	"strings"
	"testing"
)

// public lists the packages that Go programs use.
var public = []string{"ratelimit", "ratelimit/httplimit", "ratelimit/memory", "ratelimit/pgdb",
	"ratelimit/pgxdb", "ratelimit/postgres"}

// A Go program can name each type that the public API has.
func TestPublicAPIHasNoInternalTypes(t *testing.T) {
	from := importerOf(token.NewFileSet(), listed(t, compiled))
	for _, dir := range public {
		p, err := from.Import(module + "/" + dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range p.Scope().Names() {
			object := p.Scope().Lookup(name)
			if !object.Exported() {
				continue
			}
			for _, text := range signatures(object) {
				if strings.Contains(text, "/internal/") {
					t.Errorf("%s: got %s, want only types that a Go program can name", dir, text)
				}
			}
		}
	}
}

// signatures returns the types of an exported object, of its exported fields and of its exported methods.
func signatures(object types.Object) []string {
	named, isType := object.(*types.TypeName)
	if !isType {
		return []string{object.String()}
	}
	var texts []string
	if shape, ok := named.Type().Underlying().(*types.Struct); ok {
		for i := range shape.NumFields() {
			if field := shape.Field(i); field.Exported() {
				texts = append(texts, field.String())
			}
		}
	} else {
		texts = append(texts, named.Type().Underlying().String())
	}
	for methods, i := types.NewMethodSet(types.NewPointer(named.Type())), 0; i < methods.Len(); i++ {
		if method := methods.At(i).Obj(); method.Exported() {
			texts = append(texts, method.String())
		}
	}
	return texts
}
