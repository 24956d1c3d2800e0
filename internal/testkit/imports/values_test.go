package imports

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// misreadValues returns the nodes for which Yaegi reads another value than Go, each with the reason:
//
//   - An interface value and a method value have the variable from which they were made, not its
//     value. They change with the variable.
//   - Two interface values differ, even if they have the same pointer.
//   - The index in a range over a string counts characters, not bytes.
//   - A range with a value over channels, such as a []chan bool, panics.
func misreadValues(file *ast.File, info *types.Info) map[ast.Node]string {
	found := make(map[ast.Node]string)
	again := reassignedVariables(file, info)
	called := make(map[ast.Expr]bool)
	late := func(e ast.Expr) {
		if name, ok := e.(*ast.Ident); ok && again[info.Uses[name]] {
			found[e] = "Yaegi reads " + name.Name + ", which is set again, when a method is called"
		}
	}
	convert := func(e ast.Expr, to types.Type) {
		if hasMethods(to) && !types.IsInterface(info.TypeOf(e)) {
			late(e)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			called[n.Fun] = true
			eachArgument(n, info, convert)
		case *ast.SelectorExpr:
			if method := info.Selections[n]; method != nil && method.Kind() == types.MethodVal && !called[n] {
				late(n.X)
			}
		case *ast.AssignStmt:
			if n.Tok == token.ASSIGN && len(n.Lhs) == len(n.Rhs) {
				for i, e := range n.Rhs {
					convert(e, info.TypeOf(n.Lhs[i]))
				}
			}
		case *ast.KeyValueExpr:
			if field, ok := n.Key.(*ast.Ident); ok && info.Uses[field] != nil {
				convert(n.Value, info.Uses[field].Type())
			}
		case *ast.BinaryExpr:
			if (n.Op == token.EQL || n.Op == token.NEQ) && isOurs(info.TypeOf(n.X)) &&
				isOurs(info.TypeOf(n.Y)) {
				found[n] = "compares interface values, which differ in Yaegi"
			}
		case *ast.RangeStmt:
			text, ok := info.TypeOf(n.X).Underlying().(*types.Basic)
			if ok && text.Info()&types.IsString != 0 && n.Key != nil && types.ExprString(n.Key) != "_" {
				found[n] = "ranges over a string, whose index counts characters in Yaegi"
			}
			if name, ok := n.Value.(*ast.Ident); ok && name.Name != "_" {
				if _, ok := info.Defs[name].Type().Underlying().(*types.Chan); ok {
					found[n] = "ranges over channels with a value, which panics in Yaegi"
				}
			}
		}
		return true
	})
	return found
}

// reassignedVariables returns loop variables, and variables that are set after their declaration.
func reassignedVariables(file *ast.File, info *types.Info) map[types.Object]bool {
	again := make(map[types.Object]bool)
	set := func(expressions ...ast.Expr) {
		for _, e := range expressions {
			if name, ok := e.(*ast.Ident); ok {
				again[info.Uses[name]] = true
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			set(n.Lhs...)
		case *ast.IncDecStmt:
			set(n.X)
		case *ast.RangeStmt:
			for _, e := range []ast.Expr{n.Key, n.Value} {
				if name, ok := e.(*ast.Ident); ok {
					again[info.Defs[name]] = true
				}
			}
		}
		return true
	})
	delete(again, nil)
	return again
}

// eachArgument calls f for each argument of a call, with the type of its parameter.
func eachArgument(call *ast.CallExpr, info *types.Info, f func(ast.Expr, types.Type)) {
	function, ok := info.TypeOf(call.Fun).(*types.Signature)
	if !ok {
		return // a conversion, or a builtin in code with errors
	}
	for i, e := range call.Args {
		last := function.Params().Len() - 1
		switch {
		case i < last || i == last && !function.Variadic():
			f(e, function.Params().At(i).Type())
		case function.Variadic() && !call.Ellipsis.IsValid():
			if list, ok := function.Params().At(last).Type().(*types.Slice); ok {
				f(e, list.Elem())
			}
		}
	}
}

// hasMethods reports whether a type is an interface with methods.
func hasMethods(t types.Type) bool {
	if t == nil {
		return false
	}
	i, ok := t.Underlying().(*types.Interface)
	return ok && i.NumMethods() > 0
}

// isOurs reports whether a type is an interface with methods that no package of the standard
// library declares.
func isOurs(t types.Type) bool {
	named, ok := t.(*types.Named)
	return ok && hasMethods(t) && named.Obj().Pkg() != nil &&
		(named.Obj().Pkg().Path() == "p" || strings.Contains(named.Obj().Pkg().Path(), "."))
}
