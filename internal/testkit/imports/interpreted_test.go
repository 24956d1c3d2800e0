package imports

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// interpretedGo is the last Go before generics. Yaegi lacks later features of the language, or has only a
// part of them: type parameters, min, max and clear, and range over an int or a func. The type checker finds
// these features because it checks the packages as this Go.
const interpretedGo = "go1.17"

// exempt is an error of the type checker about code that Yaegi understands.
var exempt = regexp.MustCompile(`predeclared any requires go1\.18`)

// The interpreted packages use only features of Go that Yaegi has, and none that it misreads.
func TestInterpretedPackagesUseOnlyWhatYaegiHas(t *testing.T) {
	exported := listed(t, compiled)
	for _, dir := range Interpreted {
		t.Run(dir, func(t *testing.T) {
			files := make(map[string]string)
			for _, name := range exported[module+"/"+dir].GoFiles {
				files[name] = readFile(t, filepath.Join(dir, name))
			}
			if len(files) == 0 {
				t.Fatalf("%s has no files", dir)
			}
			for _, complaint := range findComplaints(t, files, exported) {
				t.Errorf("%s/%s", dir, complaint)
			}
		})
	}
}

// findComplaints returns code in a package's files that Yaegi does not support, each with its position.
func findComplaints(t *testing.T, files map[string]string, exported map[string]pkg) []string {
	t.Helper()
	var complaints []string
	fset := token.NewFileSet()
	complain := func(pos token.Pos, format string, args ...any) {
		complaints = append(complaints,
			fmt.Sprintf("%s: %s", fset.Position(pos), fmt.Sprintf(format, args...)))
	}
	var parsed []*ast.File
	for name, text := range files {
		file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, file)
		for _, group := range file.Comments {
			for _, comment := range group.List {
				if strings.HasPrefix(comment.Text, "//go:build") ||
					strings.HasPrefix(comment.Text, "// +build") {
					complain(comment.Pos(),
						"a build constraint, which Yaegi ignores: it reads only the name of a file")
				}
			}
		}
	}
	checker := types.Config{
		GoVersion:   interpretedGo,
		FakeImportC: true,
		Importer:    importerOf(fset, exported),
		Error: func(err error) {
			var e types.Error
			if errors.As(err, &e) && !exempt.MatchString(e.Msg) {
				complain(e.Pos, "%s", e.Msg)
			}
		},
	}
	info := &types.Info{
		Uses: make(map[*ast.Ident]types.Object), Defs: make(map[*ast.Ident]types.Object),
		Types:      make(map[ast.Expr]types.TypeAndValue),
		Selections: make(map[*ast.SelectorExpr]*types.Selection),
	}
	// Config.Error above has already received every error.
	_, _ = checker.Check("p", fset, parsed, info)
	for _, file := range parsed {
		for node, reason := range misreadValues(file, info) {
			complain(node.Pos(), "%s", reason)
		}
		for _, declaration := range file.Decls {
			for node, hazard := range hazardsIn(declaration) {
				complain(node.Pos(), "%s", hazard)
			}
		}
		ast.Inspect(file, func(node ast.Node) bool {
			for _, kept := range keptLoopVariables(node, info) {
				complain(kept.Pos(), "keeps the loop variable %s, which Yaegi shares between iterations: "+
					"copy it (%s := %s)", kept.Name, kept.Name, kept.Name)
			}
			return true
		})
	}
	slices.Sort(complaints)
	return complaints
}

// keptLoopVariables returns the identifiers in a loop where a closure uses a variable of the loop, or where
// the address of such a variable is taken.
func keptLoopVariables(node ast.Node, info *types.Info) []*ast.Ident {
	var declared []ast.Expr
	var body *ast.BlockStmt
	switch loop := node.(type) {
	case *ast.RangeStmt:
		declared, body = []ast.Expr{loop.Key, loop.Value}, loop.Body
	case *ast.ForStmt:
		if init, ok := loop.Init.(*ast.AssignStmt); ok {
			declared, body = init.Lhs, loop.Body
		}
	}
	variables := make(map[types.Object]bool)
	for _, expression := range declared {
		if name, ok := expression.(*ast.Ident); ok && info.Defs[name] != nil {
			variables[info.Defs[name]] = true
		}
	}
	if len(variables) == 0 {
		return nil
	}
	var kept []*ast.Ident
	uses := func(node ast.Node) {
		ast.Inspect(node, func(node ast.Node) bool {
			if name, ok := node.(*ast.Ident); ok && variables[info.Uses[name]] {
				kept = append(kept, name)
			}
			return true
		})
	}
	ast.Inspect(body, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncLit:
			uses(node)
			return false
		case *ast.UnaryExpr:
			if node.Op == token.AND {
				if name, ok := node.X.(*ast.Ident); ok {
					uses(name)
				}
			}
		}
		return true
	})
	return kept
}
