// Reads queries as a JSON list and tells what Microsoft's own language service sees in each: errors, the fields that are
// taken from dynamic columns, and the texts that columns are compared with.
const path = require("path");
const service = path.resolve("node_modules/@kusto/language-service-next");
require(path.join(service, "bridge.min.js"));
require(path.join(service, "Kusto.Language.Bridge.min.js"));
const { GlobalState, KustoCode, Symbols } = globalThis.Kusto.Language;

const { schemas, queries } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const tables = Object.entries(schemas).map(([name, columns]) => Symbols.TableSymbol.From(columns).WithName(name));
const workspace = GlobalState.Default.WithDatabase(new Symbols.DatabaseSymbol.$ctor1("workspace", tables));

const kind = (node) => globalThis.Bridge.Reflection.getTypeName(node).split(".").pop();
const children = (node) => Array.from({ length: node.ChildCount }, (_, index) => node.GetChild(index)).filter(Boolean);
const all = (node) => [node, ...children(node).flatMap(all)];
const text = (node) => node.toString().trim();
const unquoted = (literal) => literal.slice(1, -1);

function told(query) {
  const code = KustoCode.ParseAndAnalyze(query, workspace);
  const diagnostics = code.GetDiagnostics();
  const nodes = all(code.Syntax);
  const comparisons = nodes.filter((node) => ["BinaryExpression", "InExpression"].includes(kind(node)));
  return {
    errors: Array.from({ length: diagnostics.Count }, (_, index) => diagnostics.getItem(index).Message),
    tables: nodes.filter((node) => kind(node) === "NameReference" && text(node) in schemas).map(text),
    fields: nodes.filter((node) => kind(node) === "PathExpression").map((node) => text(node.GetChild(2))),
    elements: nodes.filter((node) => kind(node) === "ElementExpression").map(text),
    compared: comparisons.flatMap((node) =>
      all(node)
        .filter((part) => kind(part) === "LiteralExpression" && /^["']/.test(text(part)))
        .map((part) => [text(node.GetChild(0)), unquoted(text(part))])),
  };
}

console.log(JSON.stringify(queries.map(told)));
